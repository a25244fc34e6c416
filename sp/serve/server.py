"""The process: uvicorn around the application, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from sp.errors import ConfigError

SWITCH_SECONDS = 0.0005
"""How long the worker may keep the interpreter from the event loop; Python's 5 ms would be felt in each token."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if the address cannot be had."""
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
            service.app(), http="h11", ws="none", loop="asyncio", lifespan="on", log_level="warning",
            access_log=False, server_header=False, timeout_keep_alive=30, timeout_graceful_shutdown=grace,
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM; a second one ends without grace. Not raised again at the end: it was obeyed."""
        self.service.close()
        self.force_exit = self.should_exit
        self.should_exit = True

    def serve_on(self, listener: socket.socket) -> None:
        """Run until a signal, or until `should_exit` is set."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # what was loaded stays: to look through it again takes 50 ms of some request
        try:
            asyncio.run(self.serve([listener]))
        finally:
            gc.unfreeze()
            sys.setswitchinterval(before)
            listener.close()
