"""Connections: those that send nothing in time are closed, and where there are too many a line says so."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

from uvicorn.protocols.http import h11_impl

log = logging.getLogger("sp.serve")

IDLE: Any = h11_impl.h11.IDLE  # type: ignore[attr-defined]  # of what uvicorn speaks with
HEADER_SECONDS = 10.0  # in which the headers of a request must be here, from their first byte or the connection on
TOLD_SECONDS = 60.0  # between two lines that say the same
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # for which accept() fails


class Impatient(h11_impl.H11Protocol):
    """uvicorn's own, whose patience with headers ends."""

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
        """Begin to wait for headers, or go on; or stop, as they are here."""
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


class Troubles:
    """What the event loop calls with errors that nobody awaits. That there are no descriptors is one line a minute, not
    a traceback for each of the thousands of connections that may wait at a socket.
    """

    def __init__(self) -> None:
        self._told = -TOLD_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of one error."""
        error, handle = context.get("exception"), context.get("handle")
        if isinstance(error, ValueError) and "._start_serving" in repr(handle):
            return  # CPython tries accept() again a second after it failed, also where the socket is closed by then
        if not (isinstance(error, OSError) and error.errno in FULL):
            loop.default_exception_handler(context)
        elif (now := time.monotonic()) - self._told >= TOLD_SECONDS:
            self._told = now
            log.error("no more connections (%s); close some, or raise the limit (ulimit -n)", error.strerror)
