"""Parts that every server here has: access log, limits, metrics, a chat page, and the event loop."""

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
from contextlib import asynccontextmanager, suppress
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
from sp.serve.connections import LoopErrors, TimedProtocol
from sp.serve.fields import RequestError

AT_ONCE = 16  # bodies of the largest size that may be in memory together
SMALL_BODY = 1 << 14  # bytes; larger bodies are parsed in another thread


@dataclass(frozen=True)
class ClientLimits:
    """Limits for one client."""

    body_bytes: int = 16 << 20  # largest body
    body_seconds: float = 30.0  # to receive a body
    stall_seconds: float = 60.0  # after which a stream whose client reads nothing is dropped
    silent_seconds: float = 5.0  # without an event, after which a stream sends a ping


def busy(message: str) -> RequestError:
    """Return the error of a request for which there is no room now."""
    return RequestError(f"{message}; try again later", status=429, code="busy")


class Bodies:
    """Reads bodies, and limits their bytes together."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a body of JSON that is neither too long nor too slow; its bytes count until the context ends.

        RequestError: 408, 413, 415, or 429 if all bodies together are too long.
        """
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            # Also refuses requests that a web page can send from a browser without a CORS preflight.
            raise RequestError("the content type must be application/json; set the header", status=415)
        length = request.headers.get("content-length", "0")
        # Twenty digits exceed any limit; int() raises for thousands of them.
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
            self._held -= sum(map(len, chunks))  # also those of a body that was refused half-way

    async def _take(self, request: Request, chunks: list[bytes]) -> None:
        own, most = 0, self._limits.body_bytes  # the header of the length may be missing or wrong
        async for chunk in request.stream():
            if (own := own + len(chunk)) > most:
                raise too_long(most)
            if self._held + len(chunk) > AT_ONCE * most:
                raise busy("the memory for bodies is full")
            chunks.append(chunk)
            self._held += len(chunk)


def too_long(most: int) -> RequestError:
    """Return the error of a body of more bytes."""
    message = f"the body has more than {most} bytes; shorten the prompt or raise --max-body"
    return RequestError(message, status=413, code="body_too_large")


log = logging.getLogger("sp.serve.access")

HEADER = b"x-request-id"
ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
LONGEST_PATH = 80
EXPOSED = ("x-request-id", "retry-after")  # response headers that web pages of other origins may read
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.\-_\[\]:]+")


class AccessLog:
    """ASGI middleware that logs requests and gives each an id.

    The id is ``x-request-id`` of the client, if it is 1 to 64 letters, digits, ``. _ : -``, or else a new one; the
    response has it in the same header. A line has the client's address, method and path, the status, the seconds until
    the last byte was sent, and the id; nothing of bodies.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        client_id = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = client_id if ID.fullmatch(client_id) else f"req-{secrets.token_hex(8)}".encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ())]
                # `sp front` relays replies whose server has already given the request an id, which its owner knows.
                upstream = next((value for name, value in headers if name.lower() == HEADER), None)
                if upstream is None:
                    headers.append((HEADER, request_id))
                elif ID.fullmatch(upstream):
                    request_id = upstream
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log.info(log_line(scope, status, time.perf_counter() - start, request_id.decode()))


def log_line(scope: MutableMapping[str, Any], status: int, seconds: float, request_id: str) -> str:
    """Return the log line of a request; status 0 means that it got no answer."""
    address = scope["client"][0] if scope.get("client") else "-"
    path = scope.get("raw_path") or scope["path"].encode()  # as sent, still escaped: it cannot forge a log line
    method, path = plain(scope["method"], 16), plain(path.decode("latin-1"), LONGEST_PATH)
    return f"{address} {method} {path} {status} {seconds:.3f} s {request_id}"


def log_requests() -> None:
    """Write the lines to standard error, with the time."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def origins_of(origins: Sequence[str]) -> tuple[str, ...]:
    """Check origins for CORS: ``"*"``, or a scheme and a host with an optional port. ConfigError for one that no
    browser sends.
    """
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            advice = "give '*', or an origin such as http://localhost:3000, without a path"
            raise ConfigError(f"--cors is {short(origin)!r}; {advice}")
    return tuple(origins)


HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # has no effect in a <meta> tag
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
COMPRESS = {"auto": "where it pays", "always": "always", "off": "never"}


@cache
def chat_page() -> str:
    """Return the whole page; it uses ``/v1/chat/completions`` of its own server, and nothing else.

    >>> "<textarea" in chat_page()
    True
    """
    return page(
        "sp serve",
        tag("main", tag("h1", "sp serve ", tag("small", "", id="model")), _form(), _conversation()),
        styles=(asset("heat.css"), asset("page.css", "sp.serve")),
        scripts=(asset("page.js", "sp.serve"),),
    )


def _form() -> Html:
    """Return the controls of the document and its compression."""
    choices = (tag("option", label, value=value) for value, label in COMPRESS.items())
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


def _conversation() -> Html:
    """Return the conversation and the field for the next question."""
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


EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"  # media type of `/metrics`
SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)  # upper ends of the histograms' buckets


class Metrics:
    """Metrics of one server. `requests` by outcome: ok, refused (the client's fault, or no room), cancelled (the client
    disconnected), failed.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("sp_requests", "Requests by outcome.", ["outcome"], registry=self.registry)
        self.tokens = Counter("sp_tokens", "Tokens by kind: prompt, cached, kept, recalled, generated.",
                              ["kind"], registry=self.registry)  # fmt: skip
        self.sessions = Counter("sp_session_requests", "Requests by session match: hit, fork, miss, none.",
                                ["found"], registry=self.registry)  # fmt: skip
        self.evictions = Counter("sp_session_evictions", "Sessions that were evicted.", registry=self.registry)
        self.compressed = Counter(
            "sp_compressed", "Requests of which the target read only a part.", registry=self.registry
        )
        self.questions = Counter("sp_questions", "Chats by the kind of their question.", ["found"],
                                 registry=self.registry)  # fmt: skip
        self.lines = Counter("sp_left_out_lines", "Lines dropped because they change with every request.",
                             registry=self.registry)  # fmt: skip
        self.ttft = Histogram("sp_ttft_seconds", "Seconds from start to first token.", registry=self.registry,
                              buckets=SECONDS)  # fmt: skip
        self.waited = Histogram("sp_queue_seconds", "Seconds in the queue.", registry=self.registry, buckets=SECONDS)

    def refused(self, error: RequestError) -> None:
        """Count a request that ended in an error."""
        self.requests.labels("failed" if error.status == 500 else "refused").inc()

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when metrics are read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in the exposition format."""
        return generate_latest(self.registry)


SWITCH_SECONDS = 0.0005
"""Longest time that the worker keeps the GIL from the event loop; Python's 5 ms would delay every token."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; ConfigError if the address is not available."""
    if not host.strip():
        raise ConfigError("--host is empty; give an address such as 127.0.0.1, or 0.0.0.0 for all of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol left at 0, asyncio leaves Nagle's algorithm on, which delays tokens by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for TIME_WAIT
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {host}, port {port}: {reason}; choose --host and --port") from None


class HttpService(Protocol):
    """A service, or the router of several."""

    def app(self) -> Starlette:
        """Return the ASGI application."""

    def close(self) -> None:
        """Take no more requests."""


class Server(uvicorn.Server):
    """Stops in order: waiting requests are refused, the one that runs may end within the grace period (seconds)."""

    def __init__(self, service: HttpService, grace: int = 30) -> None:
        self.service = service
        config = uvicorn.Config(
            service.app(), http=TimedProtocol, ws="none", loop="asyncio", lifespan="on", log_level="warning",
            access_log=False, server_header=False, timeout_keep_alive=30, timeout_graceful_shutdown=grace,
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM; a second one ends without grace. Neither is raised again at the end, because it was
        obeyed.
        """
        self.service.close()
        self.force_exit = self.should_exit  # true at the second signal
        self.should_exit = True
        if (unfinished := len(self.server_state.tasks)) and not self.force_exit:
            seconds = self.config.timeout_graceful_shutdown
            advice = f"{unfinished} request{'s' * (unfinished > 1)} may take up to {seconds} s to end"
            with suppress(OSError, ValueError):  # a terminal that is gone must not keep the server alive
                print(f"sp: stopping; {advice}; press Ctrl-C again to end at once", file=sys.stderr, flush=True)

    def serve_on(self, listener: socket.socket) -> None:
        """Serve until a signal, or until `should_exit` is set."""
        before, frozen = sys.getswitchinterval(), gc.get_freeze_count() > 0
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # models and modules stay anyway; to scan them in a collection costs a request 50 ms
        try:
            asyncio.run(self._serve_on(listener))
        finally:
            if not frozen:  # else the objects of whoever froze some before would be scanned again, too
                gc.unfreeze()
            sys.setswitchinterval(before)
            listener.close()

    async def _serve_on(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await self.serve([listener])
        if self.force_exit:  # `serve` skips this when forced
            await self.lifespan.shutdown()
