"""Bodies: read within limits, one client's and all together, and only where there is room for the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from sp.serve.fields import RequestError

AT_ONCE = 16
"""Bodies of the largest size that may be in hand at once."""


@dataclass(frozen=True)
class Limits:
    """What one client may take.

    Parameters
    ----------
    body_bytes : int
        Largest body.
    body_seconds : float
        For a body to arrive.
    stall_seconds : float
        A reader of a stream that takes nothing for so long is dropped.
    """

    body_bytes: int = 16 << 20
    body_seconds: float = 30.0
    stall_seconds: float = 60.0


def busy(message: str) -> RequestError:
    """There is no room for a request now."""
    return RequestError(f"{message}; try again later", status=429, code="busy")


class Bodies:
    """Reads bodies, and counts the bytes of all that are in hand."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """A body, if it is JSON, not too long and not too slow; inside, its bytes count.

        Raises
        ------
        RequestError
            408, 413, 415, or 429 where all bodies together are too long.
        """
        _check_type(request)
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise _too_long(self._limits.body_bytes)
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
                raise _too_long(most)
            if self._held + len(chunk) > AT_ONCE * most:
                raise busy("other bodies fill the memory for them")
            chunks.append(chunk)
            self._held += len(chunk)


def _check_type(request: Request) -> None:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        # Also keeps out requests that a web page can make a browser send without asking.
        raise RequestError("the content type must be application/json; set the header", status=415)


def _too_long(most: int) -> RequestError:
    said = f"the body has more than {most} bytes; shorten the prompt or raise --max-body"
    return RequestError(said, status=413, code="body_too_large")
