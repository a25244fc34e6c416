"""The front's server: requests pass through to the upstream server, with long texts shortened on the way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sp.errors import PromptError, plain
from sp.front.bodies import Api, api_of
from sp.front.history import History, ShortenedRequest
from sp.front.json_text import with_member, with_strings, without_member
from sp.front.page import changes_page
from sp.front.rules import KEEP_RATIO_HEADER, Rules, rules_of
from sp.front.upstream import Upstream, UsageReader, prompt_tokens, reply_headers
from sp.serve.anthropic.reply import error_body
from sp.serve.fields import TOO_LONG, RequestError
from sp.serve.guard import Guard, access_middleware
from sp.serve.http import EXPOSITION, HEADERS, SMALL_BODY, too_long
from sp.serve.streams import disconnected

PAGE_REQUESTS = 8  # that the page shows
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class FrontMetrics:
    """Counters of a front."""

    def __init__(self, history: History) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("sp_front_requests", "Requests by outcome.", ["outcome"], registry=self.registry)
        self.tokens = Counter(
            "sp_front_tokens",
            "Tokens of texts received and sent on, in the drafter's vocabulary; tokens of prompts and cached tokens "
            "as the upstream server reports them.",
            ["kind"],
            registry=self.registry,
        )
        self.recalls = Counter("sp_front_recalls", "Restored passages.", registry=self.registry)
        self.seconds = Counter("sp_front_drafter_seconds", "Seconds of scoring and selection.", registry=self.registry)
        store = history.store
        gauge = Gauge("sp_front_store_bytes", "Bytes of decisions.", registry=self.registry)
        gauge.set_function(lambda: store.nbytes)
        gauge = Gauge("sp_front_store_evictions", "Decisions that the store had no room for.", registry=self.registry)
        gauge.set_function(lambda: store.evictions)

    def count(self, outcome: ShortenedRequest) -> None:
        """Count a request whose texts were looked at."""
        self.tokens.labels("in").inc(outcome.tokens)
        self.tokens.labels("out").inc(outcome.sent)
        self.recalls.inc(outcome.recalled)
        self.seconds.inc(outcome.seconds)

    def count_upstream(self, usage: Mapping[str, Any]) -> None:
        """Count the tokens of a prompt as the upstream server reports them."""
        prompt, cached = prompt_tokens(usage)
        self.tokens.labels("upstream_prompt").inc(prompt)
        self.tokens.labels("upstream_cached").inc(cached)


class PassedStream(StreamingResponse):
    """A reply that passes byte for byte. If the upstream server breaks it off, so is the connection to the client: an
    end that looks complete would be taken for the whole answer.
    """

    def __init__(self, reply: httpx.Response, chunks: AsyncIterator[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(chunks, reply.status_code)
        self._reply, self.raw_headers = reply, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply, and close it whether or not the client was still there to read it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._reply.aclose()

    async def stream_response(self, send: Send) -> None:
        """Send the reply."""
        try:
            await super().stream_response(send)
        except httpx.HTTPError as error:
            log.warning("the upstream server broke off a reply: %s", plain(str(error), 120) or type(error).__name__)


@dataclass
class Front:
    """A server that shortens requests on their way to another one.

    Parameters
    ----------
    history : History
    upstream : str
        Address, as `sp.front.upstream.upstream_of` returns it.
    rules : Rules
        Options of requests that have none of their own.
    most_bytes : int
        Largest body of a request.
    show : bool
        Show texts of the last requests on the page.
    guard : Guard, optional
        Host names that are accepted; keys are checked by the upstream server.
    """

    history: History
    upstream: str
    rules: Rules = field(default_factory=Rules)
    most_bytes: int = 64 << 20
    show: bool = True
    guard: Guard | None = None
    recent: deque[ShortenedRequest] = field(default_factory=lambda: deque(maxlen=PAGE_REQUESTS))

    def __post_init__(self) -> None:
        self.metrics = FrontMetrics(self.history)
        # One thread, so that work whose client has left still ends before the drafter is used again.
        self._drafting = ThreadPoolExecutor(1, "drafting")
        self._server: Upstream | None = None

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/metrics", self.show_metrics),
            Route("/{path:path}", self.forward, methods=METHODS),
        ]
        return Starlette(routes=routes, middleware=access_middleware((), self.guard), lifespan=self._lifespan)

    def close(self) -> None:
        """Do nothing: no request waits here but for the upstream server."""

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._server = Upstream(self.upstream)
        yield
        await self._server.close()
        self._drafting.shutdown(wait=False, cancel_futures=True)

    async def page(self, _: Request) -> Response:
        return HTMLResponse(changes_page(self.upstream, list(self.recent), self.show), headers=HEADERS)

    async def show_metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=EXPOSITION)

    async def forward(self, request: Request) -> Response:
        """Pass a request on, shortened if it is one of a model, and its reply back."""
        api = api_of(request.url.path) if request.method == "POST" else None
        try:
            raw = await self._body(request)
            return await _while_connected(request, self._answer(api, raw, request))
        except ClientDisconnect:
            self.metrics.requests.labels("cancelled").inc()
            return Response(status_code=499)
        except RequestError as error:
            return self._refusal(request, error)

    async def _answer(self, api: Api | None, raw: bytes, request: Request) -> Response:
        outcome: ShortenedRequest | None = None
        if api is not None:
            raw, outcome = await self._shortened(api, raw, request)
        return await self._send(request, raw, outcome)

    async def _body(self, request: Request) -> bytes:
        chunks, size = list[bytes](), 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self.most_bytes:
                raise too_long(self.most_bytes)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _shortened(self, api: Api, raw: bytes, request: Request) -> tuple[bytes, ShortenedRequest | None]:
        """Return the body to send, and how it was shortened; None if the client wants it unchanged."""
        size = len(raw)
        text, body = await _apart(size, _json_object, raw)
        if body is None:  # the upstream server reports what is wrong
            encoding = request.headers.get("content-encoding", "")
            reason = f"the body is encoded with {plain(encoding, 40)}" if encoding else "the body is no JSON object"
            return raw, ShortenedRequest({}, reason=reason)
        if "sp" in body:
            text = await _apart(size, without_member, text, "sp")
            raw = text.encode()
        rules = rules_of(self.rules, body.pop("sp", None), request.headers.get(KEEP_RATIO_HEADER))
        if rules is None:
            return raw, None
        # Short requests are recognised here, without waiting for the drafter's only thread.
        outcome = await _apart(size, self.history.too_short, api, body, rules) or await self._draft(api, body, rules)
        self.metrics.count(outcome)
        if not outcome.is_changed:
            return raw, outcome
        self.recent.appendleft(replace(outcome, body={}, texts={}, blocks={}))
        text = await _apart(size, with_strings, text, outcome.texts, outcome.blocks)
        return text.encode(), outcome

    async def _draft(self, api: Api, body: dict[str, Any], rules: Rules) -> ShortenedRequest:
        """Shorten a request on the drafter's thread; RequestError as soon as nothing listens upstream."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._drafting, self.history.shorten, api, body, rules)
        reach = asyncio.ensure_future(self._upstream.reach())
        try:
            await asyncio.wait((work, reach), return_when=asyncio.FIRST_COMPLETED)
            if reach.done():
                await reach
            return await work
        except PromptError as error:
            raise RequestError(str(error), code=TOO_LONG) from None
        except RequestError:
            raise
        except Exception as error:
            log.exception("a request could not be shortened and passes unchanged")
            self.metrics.requests.labels("failed").inc()
            return ShortenedRequest(body, reason=f"{type(error).__name__}: {plain(str(error), 120)}")
        finally:
            work.cancel()
            reach.cancel()

    @property
    def _upstream(self) -> Upstream:
        assert self._server is not None, "the application has not started"
        return self._server

    async def _send(self, request: Request, raw: bytes, outcome: ShortenedRequest | None) -> Response:
        changed = outcome is not None and outcome.is_changed
        headers = request.headers.raw
        if changed:  # so that the usage can be read and added to
            headers = [*(pair for pair in headers if pair[0] != b"accept-encoding"), (b"accept-encoding", b"identity")]
        path, query = request.scope.get("raw_path") or request.url.path.encode(), request.scope.get("query_string", b"")
        if not path.startswith(b"/"):
            raise RequestError("the path of a request begins with a slash; send one such as /v1/chat/completions")
        reply = await self._upstream.send(request.method, path + (b"?" + query if query else b""), headers, raw)
        self.metrics.requests.labels("shortened" if changed else "passed").inc()
        encoded = "content-encoding" in reply.headers
        if changed and not encoded and reply.headers.get("content-type", "").startswith("application/json"):
            return await self._whole(reply, outcome)
        length = [pair for pair in reply.headers.raw if pair[0].lower() == b"content-length"]
        passed = [*reply_headers(reply), *length, *_own_headers(outcome)]
        return PassedStream(reply, self._chunks(reply, outcome, encoded), passed)

    async def _chunks(
        self, reply: httpx.Response, outcome: ShortenedRequest | None, encoded: bool
    ) -> AsyncIterator[bytes]:
        """Yield a reply byte for byte, and count the usage that it reports."""
        reader = UsageReader(reply.headers.get("content-type", ""), encoded)
        async for chunk in reply.aiter_raw():
            if outcome is not None:
                reader.feed(chunk)
            yield chunk
        if outcome is not None:
            self._count_usage(outcome, reader.usage)

    async def _whole(self, reply: httpx.Response, outcome: ShortenedRequest | None) -> Response:
        """Read a reply of JSON, and add to its usage how the request was shortened."""
        assert outcome is not None
        try:
            raw = b"".join([chunk async for chunk in reply.aiter_raw()])
        except httpx.HTTPError as error:
            raise self._upstream.broken(error) from None
        finally:
            await reply.aclose()
        text, body = await _apart(len(raw), _json_object, raw)
        if body is not None and isinstance(usage := body.get("usage"), dict):
            self._count_usage(outcome, usage)
            own = outcome.usage() | ({"upstream": usage["sp"]} if "sp" in usage else {})  # of `sp serve`
            raw = (await _apart(len(raw), with_member, text, ("usage",), "sp", own)).encode()
        response = Response(raw, reply.status_code)
        length = (b"content-length", str(len(raw)).encode())
        response.raw_headers = [*reply_headers(reply), length, *_own_headers(outcome)]
        return response

    def _count_usage(self, outcome: ShortenedRequest, usage: Mapping[str, Any]) -> None:
        self.metrics.count_upstream(usage)
        self.history.learn(outcome, prompt_tokens(usage)[0])

    def _refusal(self, request: Request, error: RequestError) -> Response:
        self.metrics.requests.labels("unreachable" if error.status == 502 else "refused").inc()
        if api_of(request.url.path) == "messages":
            return JSONResponse(error_body(error), error.status)
        kind = "upstream_error" if error.status >= 500 else "invalid_request_error"
        content = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
        return JSONResponse({"error": content}, error.status)


def _json_object(raw: bytes) -> tuple[str, dict[str, Any] | None]:
    """Return the text of a body and the object that it is; None if it is anything else."""
    try:
        text = raw.decode()
        body = json.loads(text)
    except (ValueError, RecursionError):
        return "", None
    return text, body if isinstance(body, dict) else None


async def _apart(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call a function of a body of `size` bytes; in another thread if it is large, as all other requests would wait."""
    return work(*arguments) if size <= SMALL_BODY else await asyncio.to_thread(work, *arguments)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await a request's work; cancel it and raise ClientDisconnect if the client leaves first."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        task.cancel()  # does nothing to one that has ended
        disconnect.cancel()


def _own_headers(outcome: ShortenedRequest | None) -> list[tuple[bytes, bytes]]:
    """Headers that describe how a request was shortened, also for clients whose streams have no place for it."""
    if outcome is None:
        return []
    return [(f"x-sp-{name.replace('_', '-')}".encode(), plain(str(value), 200).encode("ascii", "replace"))
            for name, value in outcome.usage().items() if value not in ("", 0, 0.0)]  # fmt: skip
