"""Round every request: who may ask, bodies within limits, and a line of the log."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sp.errors import ConfigError, plain, short
from sp.serve.fields import RequestError

AT_ONCE = 16
"""Bodies of the largest size that may be in hand at once."""


@dataclass(frozen=True)
class Limits:
    """What one client may take."""

    body_bytes: int = 16 << 20  # largest body
    body_seconds: float = 30.0  # for a body to arrive
    stall_seconds: float = 60.0  # A reader of a stream that takes nothing for so long is dropped


def busy(message: str) -> RequestError:
    """There is no room for a request now."""
    return RequestError(f"{message}; try again later", status=429, code="busy")


class Bodies:
    """Reads bodies, and counts the bytes of all that are in hand."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """A body, if it is JSON, not too long and not too slow; inside, its bytes count.

        Raises
        ------
        RequestError
            408, 413, 415, or 429 where all bodies together are too long.
        """
        _check_type(request)
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise _too_long(self._limits.body_bytes)
        chunks, seconds = list[bytes](), self._limits.body_seconds
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._take(request, chunks)
            except TimeoutError:
                raise RequestError(f"the body took over {seconds:g} s; send it faster", status=408) from None
            yield b"".join(chunks)
        finally:
            self._held -= sum(map(len, chunks))

    async def _take(self, request: Request, chunks: list[bytes]) -> None:
        own, most = 0, self._limits.body_bytes
        async for chunk in request.stream():
            if (own := own + len(chunk)) > most:
                raise _too_long(most)
            if self._held + len(chunk) > AT_ONCE * most:
                raise busy("other bodies fill the memory for them")
            chunks.append(chunk)
            self._held += len(chunk)


def _check_type(request: Request) -> None:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        # Also keeps out requests that a web page can make a browser send without asking.
        raise RequestError("the content type must be application/json; set the header", status=415)


def _too_long(most: int) -> RequestError:
    said = f"the body has more than {most} bytes; shorten the prompt or raise --max-body"
    return RequestError(said, status=413, code="body_too_large")


log = logging.getLogger("sp.serve.access")

HEADER = b"x-request-id"
ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
LONGEST_PATH = 80
EXPOSED = ("x-request-id", "retry-after")
"""Headers of an answer that a web page of another origin may read."""
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.\-_\[\]:]+")


class AccessLog:
    """ASGI middleware.

    The id is the one that the client sent as ``x-request-id``, if it is 1 to 64 letters, digits, ``. _ : -``, or else a
    new one; the answer has it in the same header. The line tells the client's address, what was asked for, the status,
    the seconds until the last byte was sent and the id; of bodies it tells nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        own = given if ID.fullmatch(given) else f"req-{secrets.token_hex(8)}".encode()

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, own)]
            await send(message)

        try:
            await self._app(scope, receive, tell)
        finally:
            log.info(line(scope, status, time.perf_counter() - start, own.decode()))


def around(cors: Sequence[str]) -> list[Middleware]:
    """What stands round an application: ids, lines of log, and CORS headers for origins from `origins_of`."""
    found = [Middleware(AccessLog)]
    if cors:
        found.append(Middleware(CORSMiddleware, cors, ("GET", "POST"), ("*",), expose_headers=EXPOSED))
    return found


def line(scope: MutableMapping[str, Any], status: int, seconds: float, own: str) -> str:
    """What is logged of a request; status 0 says that it had no answer."""
    address = scope["client"][0] if scope.get("client") else "-"
    path = scope.get("raw_path") or scope["path"].encode()  # as it was sent: nothing in it can look like a line of ours
    method, path = plain(scope["method"], 16), plain(path.decode("latin-1"), LONGEST_PATH)
    return f"{address} {method} {path} {status} {seconds:.3f} s {own}"


def log_requests() -> None:
    """Have the lines go to standard error, with the time."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def origins_of(given: Sequence[str]) -> tuple[str, ...]:
    """Origins for CORS, checked: ``"*"``, or a scheme and a host, with a port if need be.

    ConfigError for what no browser would send as an origin.
    """
    for each in given:
        if each != "*" and not ORIGIN.fullmatch(each):
            said = "give '*', or an origin such as http://localhost:3000, without a path"
            raise ConfigError(f"--cors is {short(each)!r}; {said}")
    return tuple(given)
