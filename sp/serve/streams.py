"""Streams of answers: accepted at once, kept alive while the prompt is read, ended when the client disconnects."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sp.serve.fields import RequestError
from sp.serve.http import ClientLimits
from sp.serve.precheck import Precheck
from sp.serve.text import Ended, Piece
from sp.serve.worker import Done, Event, Failed, PipelineWorker, StageProgress, Ticket, Writer, stopping

COMMENT = b": reading\n\n"  # a comment, which parsers of events skip
ACCEPT_SECONDS = 0.25  # until the headers of a stream are sent; some clients wait half a second for the first byte
HANDOVER_SECONDS = 0.005  # the worker's longest wait until the first piece of a stream is sent
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would buffer events up to 4 KiB


def event(value: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class TicketEvents:
    """The events of one ticket on the event loop, and the watch for its client's disconnect.

    `first_sent`: set when the first piece of a stream was sent, or from the start if there is no stream.
    """

    def __init__(self, worker: PipelineWorker, request: Request, stream: bool) -> None:
        self.ticket: Ticket | None = None
        self.worker = worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.first_sent = threading.Event()
        if not stream:
            self.first_sent.set()
        self._gone = asyncio.ensure_future(disconnected(request))
        self._gone.add_done_callback(lambda _: self._events.put_nowait(None))  # wakes `next`

    def emit(self, item: Event) -> None:
        """Pass an event from the worker's thread to the event loop; never waits for a slow reader.

        It does wait shortly until the first piece of a stream is on its way: otherwise the launches of the next step
        would hold the interpreter each time the event loop wants it.
        """
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the event
            self._loop.call_soon_threadsafe(self._events.put_nowait, item)
            if not isinstance(item, StageProgress):
                self.first_sent.wait(HANDOVER_SECONDS)
                self.first_sent.set()

    async def next(self) -> Event:
        """Return the next event; RequestError if the work failed, ClientDisconnect if the client has disconnected."""
        item = await self._events.get()
        if item is None or self._gone.done():  # after a disconnect events may still be queued
            raise ClientDisconnect
        if isinstance(item, Failed):
            raise item.error
        return item

    async def next_within(self, seconds: float) -> Event | None:
        """Return the next event, or None after this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.next()
        return None

    def close(self) -> None:
        """Stop: cancel the ticket and drop further events."""
        self.first_sent.set()
        self._gone.cancel()
        if self.ticket is not None:
            self.worker.cancel(self.ticket)


async def first_event(events: TicketEvents, precheck: Precheck) -> Event | None:
    """Return the first event of a stream, or None if there is none by the time the headers must be sent.

    Until then a refusal is raised, also while the worker is busy: another thread checks the requests that wait.
    """
    ticket, loop = events.ticket, asyncio.get_running_loop()
    assert ticket is not None, "the request is queued"
    end = loop.time() + ACCEPT_SECONDS
    if not ticket.started:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await loop.run_in_executor(precheck.pool, precheck.check, ticket.job)
    # Not less for a request that still waits: an idle worker may be about to take it, and to refuse it.
    return await events.next_within(max(0.0, end - loop.time()))


class EventStream(Response):
    """A response of server-sent events; drops a stalled reader, and cancels the work when it ends. `first`: the first
    event, if there is one already.
    """

    media_type = "text/event-stream"

    def __init__(self, events: TicketEvents, first: Event | None, reply: Writer, limits: ClientLimits) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]  # Starlette sets 0, for the empty body
        self._events, self._limits, self._reply = events, limits, reply
        self._chunks = _chunks(events, first, reply, limits.silent_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks:
                async with asyncio.timeout(self._limits.stall_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientDisconnect, TimeoutError):
            pass
        except asyncio.CancelledError:  # the server stops
            await send({"type": "http.response.body", "body": self._reply.failed(stopping()), "more_body": False})
        finally:
            self._events.close()


async def _chunks(events: TicketEvents, item: Event | None, reply: Writer, silent: float) -> AsyncIterator[bytes]:
    """Yield the events of the stream, and a ping after each `silent` seconds without one. An error after the headers is
    the last event.
    """
    try:
        if item is None:
            yield reply.begin()
        while not isinstance(item, Done):
            if isinstance(item, Piece | Ended):
                yield reply.piece(item) if isinstance(item, Piece) else reply.ended(item)
                events.first_sent.set()  # the piece was sent: the generator is resumed only after that
            else:
                yield reply.progress(item) if isinstance(item, StageProgress) else reply.ping
            item = await events.next_within(silent)
        yield reply.last(item)
    except RequestError as error:
        events.worker.metrics.refused(error)
        yield reply.failed(error)


async def disconnected(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
