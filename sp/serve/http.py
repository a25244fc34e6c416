"""What every server here has: access, limits, log, metrics, a page to ask from, and how it runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any, Protocol

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sp.errors import ConfigError, plain, short
from sp.page.markup import Html, asset, page, tag
from sp.serve.connections import Impatient, Troubles
from sp.serve.fields import RequestError

AT_ONCE = 16  # bodies of the largest size that may be in hand at once


@dataclass(frozen=True)
class Limits:
    """What one client may take."""

    body_bytes: int = 16 << 20  # largest body
    body_seconds: float = 30.0  # for a body to arrive
    stall_seconds: float = 60.0  # A reader of a stream that takes nothing for so long is dropped
    silent_seconds: float = 5.0  # after which a stream that has nothing to say shows that it lives


def busy(message: str) -> RequestError:
    """There is no room for a request now."""
    return RequestError(f"{message}; try again later", status=429, code="busy")


class Bodies:
    """Reads bodies, and counts the bytes of all that are in hand."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """A body, if it is JSON, not too long and not too slow; inside, its bytes count. RequestError: 408, 413, 415,
        or 429 where all bodies together are too long.
        """
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            # Also keeps out requests that a web page can make a browser send without asking.
            raise RequestError("the content type must be application/json; set the header", status=415)
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise too_long(self._limits.body_bytes)
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
                raise too_long(most)
            if self._held + len(chunk) > AT_ONCE * most:
                raise busy("other bodies fill the memory for them")
            chunks.append(chunk)
            self._held += len(chunk)


def too_long(most: int) -> RequestError:
    """What is said of a body of more bytes."""
    said = f"the body has more than {most} bytes; shorten the prompt or raise --max-body"
    return RequestError(said, status=413, code="body_too_large")


log = logging.getLogger("sp.serve.access")

HEADER = b"x-request-id"
ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
LONGEST_PATH = 80
EXPOSED = ("x-request-id", "retry-after")  # headers of an answer that a web page of another origin may read
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.\-_\[\]:]+")


class AccessLog:
    """ASGI middleware. The id is the one that the client sent as ``x-request-id``, if it is 1 to 64 letters, digits,
    ``. _ : -``, or else a new one; the answer has it in the same header. The line tells the client's address, what was
    asked for, the status, the seconds until the last byte was sent and the id; of bodies it tells nothing.
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
            nonlocal status, own
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ())]
                # A front passes replies on, whose server has given the request an id by which its owner knows it.
                upstream = next((value for name, value in headers if name.lower() == HEADER), None)
                if upstream is None:
                    headers.append((HEADER, own))
                elif ID.fullmatch(upstream):
                    own = upstream
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, tell)
        finally:
            log.info(line(scope, status, time.perf_counter() - start, own.decode()))


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
    """Origins for CORS, checked: ``"*"``, or a scheme and a host, with a port if need be. ConfigError for what no
    browser would send as an origin.
    """
    for each in given:
        if each != "*" and not ORIGIN.fullmatch(each):
            said = "give '*', or an origin such as http://localhost:3000, without a path"
            raise ConfigError(f"--cors is {short(each)!r}; {said}")
    return tuple(given)


HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # which a page cannot say of itself
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
COMPRESS = {"auto": "where it pays", "always": "always", "off": "never"}


@cache
def chat_page() -> str:
    """The whole page; it talks to ``/v1/chat/completions`` of the server it came from, and to nothing else.

    >>> "<textarea" in chat_page()
    True
    """
    return page(
        "sp serve",
        tag("main", tag("h1", "sp serve ", tag("small", "", id="model")), _form(), _talk()),
        styles=(asset("heat.css"), asset("page.css", "sp.serve")),
        scripts=(asset("page.js", "sp.serve"),),
    )


def _form() -> Html:
    """Document and how it is compressed."""
    choices = (tag("option", said, value=value) for value, said in COMPRESS.items())
    return tag("section",
        tag("label", "Document", for_="document"),
        tag("textarea", id="document", rows=10, spellcheck="false",
            placeholder="Paste a long text here. It goes before your first question."),
        tag("div",
            tag("label", "or a text file ", tag("input", type="file", id="file", accept="text/*,.md,.json,.csv,.log")),
            tag("label", "keep ", tag("input", type="number", id="keep", min="0.5", max="100", step="any"), " %"),
            tag("label", "compress ", tag("select", *choices, id="compress")),
            tag("label", tag("input", type="checkbox", id="only"), " show only kept text"),
            tag("button", "new chat", type="button", id="new"),
            class_="tools"),
        aria_label="Document",
    )  # fmt: skip


def _talk() -> Html:
    """What was said, and what to say next."""
    return tag("section",
        tag("div", id="said", role="log", aria_label="Conversation", tabindex="0"),
        tag("p", "", id="trouble", role="alert"),
        tag("form",
            tag("label", "Question", for_="question"),
            tag("textarea", id="question", rows=2, required=True),
            tag("div", tag("button", "Ask", type="submit", id="ask"),
                tag("button", "Stop", type="button", id="stop", disabled=True), class_="tools"),
            id="form"),
        aria_label="Chat",
    )  # fmt: skip


EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"  # media type of what `/metrics` says
SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """Counters of one server. `requests` by outcome: ok, refused (the client's fault, or no room), cancelled (the
    client left), failed.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("sp_requests", "Requests by outcome.", ["outcome"], registry=self.registry)
        self.tokens = Counter("sp_tokens", "Tokens: of prompts, of them cached, kept and recalled; and generated.",
                              ["kind"], registry=self.registry)  # fmt: skip
        self.sessions = Counter("sp_session_requests", "Requests by the session they found: hit, fork, miss, none.",
                                ["found"], registry=self.registry)  # fmt: skip
        self.evictions = Counter("sp_session_evictions", "Sessions that had to go.", registry=self.registry)
        self.compressed = Counter("sp_compressed", "Requests the target read only in part.", registry=self.registry)
        self.questions = Counter("sp_questions", "Chats by what was taken for the question.", ["found"],
                                 registry=self.registry)  # fmt: skip
        self.lines = Counter("sp_left_out_lines", "Lines of prompts left out: they change with every request.",
                             registry=self.registry)  # fmt: skip
        self.ttft = Histogram("sp_ttft_seconds", "From the start of work to the first token.", registry=self.registry,
                              buckets=SECONDS)  # fmt: skip
        self.waited = Histogram("sp_queue_seconds", "Wait in the queue.", registry=self.registry, buckets=SECONDS)

    def refused(self, error: RequestError) -> None:
        """Count a request that ended in an error."""
        self.requests.labels("failed" if error.status == 500 else "refused").inc()

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """In the exposition format."""
        return generate_latest(self.registry)


SWITCH_SECONDS = 0.0005
"""How long the worker may keep the interpreter from the event loop; Python's 5 ms would be felt in each token."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if the address cannot be had."""
    if not host.strip():
        raise ConfigError("--host is empty; give an address such as 127.0.0.1, or 0.0.0.0 for all of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: without it asyncio leaves Nagle's algorithm on, which holds tokens back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose --host and --port") from None


class Served(Protocol):
    """A service, or the door before several."""

    def app(self) -> Starlette:
        """The ASGI application."""

    def close(self) -> None:
        """Take no more requests."""


class Server(uvicorn.Server):
    """Stops in order: waiting requests are refused, the one at work may end within the grace period."""

    def __init__(self, service: Served, grace: int = 30) -> None:
        self.service = service
        config = uvicorn.Config(
            service.app(), http=Impatient, ws="none", loop="asyncio", lifespan="on", log_level="warning",
            access_log=False, server_header=False, timeout_keep_alive=30, timeout_graceful_shutdown=grace,
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM; a second one ends without grace. Not raised again at the end: it was obeyed."""
        self.service.close()
        if (left := len(self.server_state.tasks)) and not self.should_exit:
            said = f"{left} request{'s' * (left > 1)} may take {self.config.timeout_graceful_shutdown} s to end"
            print(f"sp: stopping; {said}; once more (Ctrl-C) ends at once", file=sys.stderr, flush=True)
        self.force_exit = self.should_exit
        self.should_exit = True

    def serve_on(self, listener: socket.socket) -> None:
        """Run until a signal, or until `should_exit` is set."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # what was loaded stays: to look through it again takes 50 ms of some request
        try:
            asyncio.run(self._serve_on(listener))
        finally:
            gc.unfreeze()
            sys.setswitchinterval(before)
            listener.close()

    async def _serve_on(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(Troubles())
        await self.serve([listener])
        if self.force_exit:  # which leaves this out
            await self.lifespan.shutdown()
