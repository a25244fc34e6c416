"""Who is answered: names that a server may be called by, the key that clients have; and what stands round it all."""

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
OPEN = ("/", "/health")  # paths without secrets: the page, which has the key from its own address, and a sign of life


@dataclass(frozen=True)
class Guard:
    """Whom a server answers.

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
        """Whether a request for this host, as its header says it, is meant for this server. A web page whose name was
        made to point here (DNS rebinding) sends that name; an address cannot be made to point elsewhere.

        >>> guard = Guard(("box.lan",))
        >>> [guard.answers_to(host) for host in ("localhost:80", "[::1]:8000", "10.0.0.7", "BOX.lan", "evil.example")]
        [True, True, True, True, False]
        """
        name = (_name_in(host) or "").rstrip(".").lower()
        try:
            ip_address(name)
            return True
        except ValueError:
            local = name == "localhost" or name.endswith(".localhost")
            return local or "*" in self.hosts or name in (each.lower() for each in self.hosts)

    def admits(self, headers: Headers) -> bool:
        """Whether a request has the key, in either header in which clients send it."""
        kind, _, sent = headers.get("authorization", "").partition(" ")
        given = sent.strip() if kind.lower() == "bearer" else ""
        keys = (given, headers.get("x-api-key", ""))
        return not self.key or any(hmac.compare_digest(each.encode(), self.key.encode()) for each in keys)


def _name_in(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Ending:
    """ASGI middleware that ends what is at work when the server does, as it is cancelled, without a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        begun = False

        async def told(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, told)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if begun:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await refusal(stopping(), scope["path"])(scope, receive, send)


class OfThisHost:
    """ASGI middleware that refuses requests for other hosts; those without the header come from no browser."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if not host or self._guard.answers_to(host):
            return await self._app(scope, receive, send)
        name = plain(_name_in(host) or host)
        said = f"this server is not called {name!r}; start it with --allow-host {name}, or call it by its address"
        await refusal(RequestError(said, status=403, code="host_not_allowed"), scope["path"])(scope, receive, send)


class WithKey:
    """ASGI middleware that refuses requests without the key."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN or self._guard.admits(Headers(scope=scope)):
            return await self._app(scope, receive, send)
        said = "the API key is missing or wrong; send the one of --api-key, or that the server told when it was started"
        error = RequestError(said, status=401, code="invalid_api_key")
        await refusal(error, scope["path"], {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def around(cors: Sequence[str], guard: Guard | None) -> list[Middleware]:
    """What stands round an application: ids, lines of log, whom it answers, and CORS headers for origins from
    `origins_of`. Browsers ask without a key what they may send, so that is looked at last.
    """
    found = [Middleware(AccessLog), Middleware(Ending)]
    if guard is not None:
        found.append(Middleware(OfThisHost, guard))
    if cors:
        found.append(Middleware(CORSMiddleware, cors, ("GET", "POST"), ("*",), expose_headers=EXPOSED))
    if guard is not None and guard.key:
        found.append(Middleware(WithKey, guard))
    return found


def on_loopback(listener: socket.socket) -> bool:
    """Whether nobody on another machine reaches a listening socket."""
    return ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def hosts_of(given: Sequence[str], host: str, *, loopback: bool) -> tuple[str, ...]:
    """Names by which a server may be called: those given, what it listens on, and where others reach it the machine's.
    ConfigError for what is no name of a host.
    """
    for each in given:
        if each != "*" and not NAME.fullmatch(each):
            said = "give a name such as box.lan, without scheme and port, or '*' for any"
            raise ConfigError(f"--allow-host is {short(repr(each))}; {said}")
    own = () if loopback else (socket.gethostname(), f"{socket.gethostname()}.local")
    return (*given, host, *own)


def key_of(given: str | None) -> str:
    """A key, checked; empty for none. ConfigError for one that no header can hold, or that is soon guessed."""
    if given is not None and not KEY.fullmatch(given):
        raise ConfigError("the API key must be 8 to 512 characters of ASCII without spaces; take another")
    return given or ""
