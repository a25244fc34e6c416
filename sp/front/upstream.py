"""The upstream server: how requests reach it, and what its replies report of their use."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from sp.errors import ConfigError, plain, short
from sp.serve.fields import RequestError

CONNECT_SECONDS = 4.0  # for a connection to the upstream server
KEEP_ALIVE_SECONDS = 2.0
"""Life of an idle connection. llama-server and uvicorn close theirs after 5 s; a request sent then would be lost."""
FRESH_SECONDS = 10.0  # since the last reply, in which the upstream server counts as reachable
MAX_LINE_BYTES = 16 << 20  # of a line of a stream, or of a whole reply, that is searched for its usage

HOP_HEADERS = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length", "expect")
)  # fmt: skip
"""Headers of one connection alone (RFC 9110, 7.6.1)."""
OWN_HEADERS = ("x-sp-",)  # beginnings of names

Headers = Sequence[tuple[bytes, bytes]]


def upstream_of(url: str) -> str:
    """Check the address of an upstream server, and strip a slash and ``/v1`` from its end.

    >>> upstream_of("http://127.0.0.1:8080/v1/")
    'http://127.0.0.1:8080'
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--upstream is {short(url)!r}; give an address such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def unreachable(upstream: str, error: BaseException) -> str:
    """Say that no server answers at an address."""
    reason = plain(str(error), 120) or type(error).__name__
    return f"the upstream server at {upstream} cannot be reached ({reason}); start it, or correct --upstream"


class Upstream:
    """A server that requests are passed on to, each once.

    There are no cookies, redirects or default headers, which `httpx.AsyncClient` has: they would mix clients up.
    """

    def __init__(self, address: str) -> None:
        self.address, self._url = address, httpx.URL(address)
        self._base = self._url.raw_path.rstrip(b"/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_SECONDS)
        self._transport = httpx.AsyncHTTPTransport(limits=limits)
        self._replied = -FRESH_SECONDS

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def reach(self) -> None:
        """Connect, unless a reply has just come; RequestError if nothing listens."""
        if time.monotonic() - self._replied < FRESH_SECONDS:
            return
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(self._url.host, port)
            writer.close()
        except OSError as error:  # TimeoutError is one
            raise RequestError(unreachable(self.address, error), status=502, code="upstream_unreachable") from None

    async def send(self, method: str, target: bytes, headers: Headers, content: bytes) -> httpx.Response:
        """Send a request once, to a path and query as the client spelled them; the reply's body is still to be read.

        RequestError if the server cannot be reached, or closes the connection without a reply.
        """
        named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
        end_to_end = [
            (name, value)
            for name, value in headers
            if (text := name.decode("latin-1")) not in HOP_HEADERS
            and name not in named
            and not text.startswith(OWN_HEADERS)
        ]
        # The target goes out as it came: to parse it as a part of an address could lead to another host.
        timeout = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}
        extensions: dict[str, Any] = {"target": self._base + target, "timeout": timeout}
        request = httpx.Request(method, self._url, headers=end_to_end, content=content, extensions=extensions)
        try:
            reply = await self._transport.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise RequestError(unreachable(self.address, error), status=502, code="upstream_unreachable") from None
        except httpx.HTTPError as error:
            raise self.broken(error) from None
        self._replied = time.monotonic()
        return reply

    def broken(self, error: httpx.HTTPError) -> RequestError:
        """Describe a connection that ended before its reply did."""
        reason = plain(str(error), 120) or type(error).__name__
        message = f"the upstream server at {self.address} closed the connection ({reason}); the request was sent once"
        return RequestError(message, status=502, code="upstream_error")


def reply_headers(reply: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Headers of a reply for the client: all but those of one connection, and the date, which the front writes."""
    named = {part.strip().lower() for part in reply.headers.get("connection", "").encode().split(b",")}
    return [
        (name, value)
        for name, value in reply.headers.raw
        if (lower := name.lower()) not in named and lower.decode("latin-1") not in HOP_HEADERS | {"date"}
    ]


def prompt_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens of a prompt and how many of them were cached, as either kind of API reports them.

    >>> prompt_tokens({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}})
    (9, 4)
    >>> prompt_tokens({"input_tokens": 5, "cache_read_input_tokens": 4})
    (9, 4)
    """

    def count(value: Any) -> int:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53 else 0

    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        cached = count(usage.get("cache_read_input_tokens"))
        return count(usage.get("input_tokens")) + cached + count(usage.get("cache_creation_input_tokens")), cached
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    prompt = count(usage.get("prompt_tokens")) or count(usage.get("input_tokens"))
    return prompt, count(details.get("cached_tokens")) if isinstance(details, dict) else 0


class UsageReader:
    """Collects the usage that a reply reports, while it passes: of a stream of events, or of JSON as a whole.

    >>> reader = UsageReader("text/event-stream")
    >>> for chunk in (b'data: {"usage": {"prompt', b'_tokens": 3}}\\r\\n\\r\\ndata: [DONE]'):
    ...     reader.feed(chunk)
    >>> reader.usage
    {'prompt_tokens': 3}
    """

    def __init__(self, media_type: str, encoded: bool = False) -> None:
        self._is_stream = media_type.startswith("text/event-stream")
        self._reads = not encoded and (self._is_stream or media_type.startswith("application/json"))
        self._line = bytearray()
        self._usage: dict[str, Any] = {}

    def feed(self, chunk: bytes) -> None:
        """Read the next piece."""
        if not self._reads:
            return
        self._line += chunk
        if self._is_stream and b"\n" in chunk:
            *lines, rest = self._line.split(b"\n")
            self._line = rest
            for line in lines:
                self._read_event(bytes(line))
        if len(self._line) > MAX_LINE_BYTES:  # its usage is lost, but the reply itself passes all the same
            self._line.clear()

    @property
    def usage(self) -> dict[str, Any]:
        """All fields so far; a later event's replaces an earlier one's."""
        if self._line and self._reads:
            rest, self._line = bytes(self._line), bytearray()
            self._read_event(rest if self._is_stream else b"data:" + rest)
        return self._usage

    def _read_event(self, line: bytes) -> None:
        if not (line.startswith(b"data:") and b'"usage"' in line):
            return
        try:
            event = json.loads(line[5:])
        except (ValueError, RecursionError):
            return
        # Chat completions and message_delta have it at the top, Responses and message_start one level below.
        for holder in (event, event.get("response"), event.get("message")) if isinstance(event, dict) else ():
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):  # merged: Anthropic's come in parts
                self._usage |= holder["usage"]
