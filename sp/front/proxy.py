"""The front's server: requests pass through to another one, with long texts shortened on the way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sp.errors import ConfigError, PromptError, plain, short
from sp.front.bodies import Api, api_of
from sp.front.history import History, Outcome, Rules
from sp.front.page import changes_page
from sp.serve.anthropic.reply import error_body
from sp.serve.fields import RequestError
from sp.serve.guard import Guard, around
from sp.serve.http import EXPOSITION, HEADERS, too_long

HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length")
)  # fmt: skip
"""Headers that are of one connection alone."""
CONNECT = 4.0  # seconds for a connection to the upstream server
SHOWN = 8  # requests that the page shows
TAIL = 1 << 16  # bytes of a stream's end in which its usage is looked for
ASKED = ("keep_ratio", "threshold", "max_prompt_tokens", "recall", "off")  # fields of `sp` in a request
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

log = logging.getLogger(__name__)


def upstream_of(url: str) -> str:
    """The address of an upstream server, checked, without a slash at its end and without ``/v1``.

    >>> upstream_of("http://127.0.0.1:8080/v1/")
    'http://127.0.0.1:8080'
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--upstream is {short(url)!r}; give an address such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class Metrics:
    """Counters of a front."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sp_front_requests", "Requests by what became of them.", ["outcome"], registry=self.registry
        )
        self.tokens = Counter(
            "sp_front_tokens",
            "Tokens of texts in the drafter's vocabulary: as they came, as they went on; and of prompts as the "
            "upstream server counted them, of those cached.",
            ["kind"],
            registry=self.registry,
        )
        self.recalls = Counter("sp_front_recalls", "Passages that came back.", registry=self.registry)
        self.seconds = Counter("sp_front_drafter_seconds", "What the drafter took.", registry=self.registry)

    def took(self, outcome: Outcome) -> None:
        """Count a request that was looked at."""
        self.tokens.labels("in").inc(outcome.tokens)
        self.tokens.labels("out").inc(outcome.sent)
        self.recalls.inc(outcome.recalled)
        self.seconds.inc(outcome.seconds)

    def used(self, usage: Mapping[str, Any]) -> None:
        """Count what the upstream server says of a prompt."""
        prompt, cached = prompt_tokens(usage)
        self.tokens.labels("upstream_prompt").inc(prompt)
        self.tokens.labels("upstream_cached").inc(cached)


def prompt_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a prompt and those of them that were cached, as either kind of API tells them.

    >>> prompt_tokens({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}})
    (9, 4)
    >>> prompt_tokens({"input_tokens": 5, "cache_read_input_tokens": 4})
    (9, 4)
    """

    def number(value: Any) -> int:
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    if "cache_read_input_tokens" in usage:
        cached = number(usage.get("cache_read_input_tokens"))
        return number(usage.get("input_tokens")) + cached + number(usage.get("cache_creation_input_tokens")), cached
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    prompt = number(usage.get("prompt_tokens")) or number(usage.get("input_tokens"))
    return prompt, number(details.get("cached_tokens")) if isinstance(details, dict) else 0


def usage_of(tail: bytes) -> dict[str, Any]:
    """The last usage that the end of a stream tells; empty if it tells none.

    >>> usage_of(b'data: {"usage": {"prompt_tokens": 3}}\\n\\ndata: [DONE]\\n\\n')
    {'prompt_tokens': 3}
    """
    found: dict[str, Any] = {}
    for line in tail.split(b"\n"):
        if line.startswith(b"data:") and b"usage" in line:
            try:
                event = json.loads(line[5:])
            except ValueError:
                continue
            for holder in (event, event.get("response"), event.get("message")) if isinstance(event, dict) else ():
                if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                    found |= holder["usage"]
    return found


@dataclass
class Front:
    """A server before another one.

    Parameters
    ----------
    history : History
    upstream : str
        Of `upstream_of`.
    rules : Rules
        For requests that do not say otherwise.
    most_bytes : int
        Of a request's body.
    show : bool
        Whether the page shows texts of the last requests.
    guard : Guard, optional
        Names by which it may be called; keys are the upstream server's business.
    """

    history: History
    upstream: str
    rules: Rules = field(default_factory=Rules)
    most_bytes: int = 64 << 20
    show: bool = True
    guard: Guard | None = None
    metrics: Metrics = field(default_factory=Metrics)
    shown: deque[Outcome] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def __post_init__(self) -> None:
        self._drafting = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None
        gauge = Gauge("sp_front_store_bytes", "Bytes of decisions.", registry=self.metrics.registry)
        gauge.set_function(lambda: self.history.store.nbytes)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/metrics", self.told),
            Route("/{path:path}", self.passed, methods=METHODS),
        ]
        return Starlette(routes=routes, middleware=around((), self.guard), lifespan=self._lifespan)

    def close(self) -> None:
        """Nothing waits here but for the upstream server."""

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        timeout = httpx.Timeout(None, connect=CONNECT)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False) as client:
            self._client = client
            yield

    async def page(self, _: Request) -> Response:
        return HTMLResponse(changes_page(self.upstream, list(self.shown), self.show), headers=HEADERS)

    async def told(self, _: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=EXPOSITION)

    async def passed(self, request: Request) -> Response:
        """Pass a request on."""
        api = api_of(request.url.path) if request.method == "POST" else None
        try:
            raw = await self._body(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except RequestError as error:
            return self._refused(request, error)
        outcome: Outcome | None = None
        if api is not None:
            try:
                raw, outcome = await self._shortened(api, raw, request)
            except RequestError as error:
                return self._refused(request, error)
        return await self._send(request, raw, outcome)

    async def _body(self, request: Request) -> bytes:
        chunks, size = list[bytes](), 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self.most_bytes:
                raise too_long(self.most_bytes)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _shortened(self, api: Api, raw: bytes, request: Request) -> tuple[bytes, Outcome | None]:
        """The body to send on, and what became of its texts; None where it was not looked at."""
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            return raw, None  # the upstream server says what is wrong
        if not isinstance(body, dict):
            return raw, None
        asked = body.pop("sp", None)
        header = request.headers.get("x-sp-keep-ratio")
        given = asked is not None
        rules = self._rules(asked, header)
        if rules is None:
            return (json.dumps(body, ensure_ascii=False).encode() if given else raw), None
        async with self._drafting:
            try:
                outcome = await asyncio.to_thread(self.history.shorten, api, body, rules)
            except PromptError as error:
                raise RequestError(str(error), code="context_length_exceeded") from None
            except Exception as error:
                log.exception("a request could not be shortened and goes on as it came")
                self.metrics.requests.labels("failed").inc()
                outcome = Outcome(body, reason=f"{type(error).__name__}: {plain(str(error), 120)}")
        self.metrics.took(outcome)
        if outcome.changes:
            self.shown.appendleft(replace(outcome, body={}))
        if not outcome.changes and not given:
            return raw, outcome
        return json.dumps(outcome.body, ensure_ascii=False).encode("utf-8", "surrogatepass"), outcome

    def _rules(self, asked: Any, header: str | None) -> Rules | None:
        """What a request asks for; None if nothing is to be shortened."""
        wanted: dict[str, Any] = {}
        if header is not None:
            if header.strip().lower() == "off":
                return None
            try:
                wanted["keep_ratio"] = float(header)
            except ValueError:
                raise RequestError(f"x-sp-keep-ratio is {short(header)!r}; send a share such as 0.2, or off") from None
        if asked is not None:
            if not isinstance(asked, dict):
                raise RequestError("sp is no object; send one such as {'keep_ratio': 0.2}", "sp")
            for name in asked:
                if name not in ASKED:
                    known = ", ".join(ASKED)
                    raise RequestError(f"sp has no field {plain(str(name), 40)!r}; it has {known}", "sp")
            if asked.get("off") is True:
                return None
            wanted |= {name: value for name, value in asked.items() if name != "off" and value is not None}
        if not wanted:
            return self.rules
        numbers = {"keep_ratio": (int, float), "threshold": (int,), "max_prompt_tokens": (int,), "recall": (bool,)}
        for name, value in wanted.items():
            if not isinstance(value, numbers[name]) or (name != "recall" and isinstance(value, bool)):
                raise RequestError(
                    f"sp.{name} is {plain(str(value), 40)}; send a {numbers[name][-1].__name__}", f"sp.{name}"
                )
        if "max_prompt_tokens" in wanted:
            wanted["most"] = wanted.pop("max_prompt_tokens")
        try:
            return replace(self.rules, **wanted)
        except ConfigError as error:
            raise RequestError(str(error), "sp") from None

    async def _send(self, request: Request, raw: bytes, outcome: Outcome | None) -> Response:
        assert self._client is not None
        changed = outcome is not None and bool(outcome.changes)
        headers = [(name, value) for name, value in request.headers.raw if name.decode("latin-1") not in HOP]
        if changed:
            headers = [pair for pair in headers if pair[0] != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))
        path = request.scope.get("raw_path") or request.url.path.encode()
        query = request.scope.get("query_string", b"")
        target = self.upstream + path.decode("latin-1") + ("?" + query.decode("latin-1") if query else "")
        made = self._client.build_request(request.method, target, headers=headers, content=raw)
        try:
            reply = await self._client.send(made, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            said = f"the upstream server at {self.upstream} cannot be reached; start it, or see --upstream"
            return self._refused(request, RequestError(said, status=502))
        except httpx.HTTPError as error:
            said = (
                f"the upstream server at {self.upstream} broke off ({type(error).__name__}); the request was sent once"
            )
            return self._refused(request, RequestError(said, status=502))
        self.metrics.requests.labels("shortened" if changed else "passed").inc()
        passed_on = [(name, value) for name, value in reply.headers.raw if name.lower().decode("latin-1") not in HOP]
        media = reply.headers.get("content-type", "")
        if changed and media.startswith("application/json"):
            return await self._whole(reply, passed_on, outcome)
        streamed = StreamingResponse(self._through(reply, outcome), reply.status_code)
        told = _headers(outcome)
        size = [(b"content-length", value) for name, value in reply.headers.raw if name.lower() == b"content-length"]
        streamed.raw_headers = [*passed_on, *size, *told]
        return streamed

    async def _through(self, reply: httpx.Response, outcome: Outcome | None) -> AsyncIterator[bytes]:
        """The reply as it comes, byte for byte."""
        tail = b""
        try:
            async for chunk in reply.aiter_raw():
                if outcome is not None:
                    tail = (tail + chunk)[-TAIL:]
                yield chunk
        finally:
            await reply.aclose()
        if outcome is not None:
            self._used(outcome, usage_of(tail))

    async def _whole(
        self, reply: httpx.Response, headers: list[tuple[bytes, bytes]], outcome: Outcome | None
    ) -> Response:
        """A reply of JSON, with what was done in its usage."""
        try:
            raw = await reply.aread()
        finally:
            await reply.aclose()
        assert outcome is not None
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if isinstance(body, dict) and isinstance(body.get("usage"), dict):
            self._used(outcome, body["usage"])
            body["usage"]["sp"] = outcome.told()
            raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        found = Response(raw, reply.status_code)
        found.raw_headers = [*headers, (b"content-length", str(len(raw)).encode()), *_headers(outcome)]
        return found

    def _used(self, outcome: Outcome, usage: Mapping[str, Any]) -> None:
        self.metrics.used(usage)
        self.history.count(outcome, prompt_tokens(usage)[0])

    def _refused(self, request: Request, error: RequestError) -> Response:
        self.metrics.requests.labels("unreachable" if error.status == 502 else "refused").inc()
        if api_of(request.url.path) == "messages":
            return JSONResponse(error_body(error), error.status)
        kind = "upstream_error" if error.status >= 500 else "invalid_request_error"
        told = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
        return JSONResponse({"error": told}, error.status)


def _headers(outcome: Outcome | None) -> list[tuple[bytes, bytes]]:
    """What a reply says of its request, for clients whose streams have no place for it."""
    if outcome is None:
        return []
    return [(f"x-sp-{name.replace('_', '-')}".encode(), plain(str(value), 200).encode("ascii", "replace"))
            for name, value in outcome.told().items() if value not in ("", 0, 0.0)]  # fmt: skip
