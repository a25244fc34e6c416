"""Connections: those that send no request in time are closed, and when there are too many a line is logged."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

from uvicorn.protocols.http import h11_impl

log = logging.getLogger("sp.serve")

IDLE: Any = h11_impl.h11.IDLE  # type: ignore[attr-defined]  # a state of uvicorn's HTTP parser
HEADER_SECONDS = 10.0  # until the headers must be complete, from the connection or their first byte
LOG_SECONDS = 60.0  # between two log lines of the same error
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # errors of accept() for lack of resources


class TimedProtocol(h11_impl.H11Protocol):
    """uvicorn's HTTP protocol with a timeout for headers."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start or continue the timer for headers; stop it once they are complete."""
        if self.conn.their_state is not IDLE:
            self._stop()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_SECONDS, self._late)

    def _late(self) -> None:
        self._waiting = None
        self.transport.close()

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class LoopErrors:
    """A handler for exceptions of the event loop that nobody awaits.

    A lack of descriptors is logged as one line a minute, instead of a traceback for each of the thousands of
    connections that may wait at a socket.
    """

    def __init__(self) -> None:
        self._logged = -LOG_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report one error."""
        error, handle = context.get("exception"), context.get("handle")
        if isinstance(error, ValueError) and "._start_serving" in repr(handle):
            return  # CPython retries accept() after a second, even if the socket is closed by then
        if not (isinstance(error, OSError) and error.errno in FULL):
            loop.default_exception_handler(context)
        elif (now := time.monotonic()) - self._logged >= LOG_SECONDS:
            self._logged = now
            log.error("no more connections (%s); close some, or raise the limit (ulimit -n)", error.strerror)
