"""Access control: names that a server answers to, the API key; and the middleware around every application."""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sp.errors import ConfigError, plain, short
from sp.serve.anthropic.reply import refusal
from sp.serve.fields import RequestError
from sp.serve.http import EXPOSED, AccessLog
from sp.serve.worker import stopping

NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
KEY = re.compile(r"[!-~]{8,512}")
OPEN_PATHS = ("/", "/health")  # without secrets: the page, which reads the key from its own URL, and the health check


@dataclass(frozen=True)
class Guard:
    """Rules for which requests a server answers.

    Parameters
    ----------
    hosts : tuple of str
        Names by which it may be called besides addresses and localhost; ``"*"`` for any.
    key : str
        What clients send as their API key; empty for none.
    """

    hosts: tuple[str, ...] = ()
    key: str = ""

    def answers_to(self, host: str) -> bool:
        """Return True if a request with this Host header is meant for this server.

        A web page whose name was made to resolve to this server (DNS rebinding) sends that name; an address cannot be
        made to point elsewhere.

        >>> guard = Guard(("box.lan",))
        >>> [guard.answers_to(host) for host in ("localhost:80", "[::1]:8000", "10.0.0.7", "BOX.lan", "evil.example")]
        [True, True, True, True, False]
        """
        name = (_host_name(host) or "").rstrip(".").lower()
        try:
            ip_address(name)
            return True
        except ValueError:
            local = name == "localhost" or name.endswith(".localhost")
            return local or "*" in self.hosts or name in (allowed.lower() for allowed in self.hosts)

    def admits(self, headers: Headers) -> bool:
        """Return True if a request has the key, in either header in which clients send it."""
        kind, _, sent = headers.get("authorization", "").partition(" ")
        bearer = sent.strip() if kind.lower() == "bearer" else ""
        keys = (bearer, headers.get("x-api-key", ""))
        # In constant time, so that timing reveals no prefix of the key.
        return not self.key or any(hmac.compare_digest(key.encode(), self.key.encode()) for key in keys)


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class EndOnShutdown:
    """ASGI middleware that ends a running request without a traceback when the server stops and cancels it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, tracked_send)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if started:  # the headers are sent: only the body can be ended
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await refusal(stopping(), scope["path"])(scope, receive, send)


class HostCheck:
    """ASGI middleware that refuses requests for other hosts; one without the header does not come from a browser."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if not host or self._guard.answers_to(host):
            return await self._app(scope, receive, send)
        name = plain(_host_name(host) or host)
        message = (
            f"this server does not answer to the name {name!r}; start it with --allow-host {name}, or use its address"
        )
        await refusal(RequestError(message, status=403, code="host_not_allowed"), scope["path"])(scope, receive, send)


class KeyCheck:
    """ASGI middleware that refuses requests without the key."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._guard.admits(Headers(scope=scope)):
            return await self._app(scope, receive, send)
        message = (
            "the API key is missing or wrong; send that of --api-key, or the one that the server printed at its start"
        )
        error = RequestError(message, status=401, code="invalid_api_key")
        await refusal(error, scope["path"], {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def access_middleware(cors: Sequence[str], guard: Guard | None) -> list[Middleware]:
    """Return the middleware around an application: ids, log lines, host and key checks, and CORS headers for origins
    from `origins_of`.

    The key is checked innermost, after CORS, because browsers send their preflight requests without a key.
    """
    middleware = [Middleware(AccessLog), Middleware(EndOnShutdown)]
    if guard is not None:
        middleware.append(Middleware(HostCheck, guard))
    if cors:
        middleware.append(Middleware(CORSMiddleware, cors, ("GET", "POST"), ("*",), expose_headers=EXPOSED))
    if guard is not None and guard.key:
        middleware.append(Middleware(KeyCheck, guard))
    return middleware


def on_loopback(listener: socket.socket) -> bool:
    """Return True if a listening socket cannot be reached from another machine."""
    return ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def hosts_of(names: Sequence[str], host: str, *, loopback: bool) -> tuple[str, ...]:
    """Return the names that a server answers to: the given ones, the one it listens on, and the machine's unless it is
    on loopback. ConfigError for an invalid name.
    """
    for name in names:
        if name != "*" and not NAME.fullmatch(name):
            advice = "give a name such as box.lan, without scheme and port, or '*' for any"
            raise ConfigError(f"--allow-host is {short(repr(name))}; {advice}")
    own = () if loopback else (socket.gethostname(), f"{socket.gethostname()}.local")
    return (*names, host, *own)


def key_of(key: str | None) -> str:
    """Return a key; empty for none. ConfigError for one that no header can hold, or that is too short."""
    if key is not None and not KEY.fullmatch(key):
        raise ConfigError("the API key must be 8 to 512 characters of ASCII without spaces; take another")
    return key or ""
