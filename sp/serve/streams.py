"""Streams of answers: accepted at once, alive while the prompt waits and is read, ended where nobody listens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sp.serve.fields import RequestError
from sp.serve.http import Limits
from sp.serve.text import Ended, Piece
from sp.serve.worker import Done, Event, Failed, Reading, Ticket, Worker, Writer, stopping

COMMENT = b": reading\n\n"  # which readers of events skip
ACCEPT_SECONDS = 0.25  # after which the headers of a stream go out; programs wait half a second for its first byte
HANDOVER_SECONDS = 0.005  # how long the worker waits at most for the first piece of a stream to be sent
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold events back until it has 4 KiB


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class Answer:
    """The events of one ticket on the side of the event loop, and the watch over its client. `begun` is set once the
    first piece of a stream was sent, or need not be.
    """

    def __init__(self, worker: Worker, request: Request, stream: bool) -> None:
        self.ticket: Ticket | None = None
        self.worker = worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.begun = threading.Event()
        if not stream:
            self.begun.set()
        self._gone = asyncio.ensure_future(disconnected(request))
        self._gone.add_done_callback(lambda _: self._events.put_nowait(None))

    def emit(self, item: Event) -> None:
        """Called on the worker's thread; never waits for a slow reader. It does wait, shortly, until the first piece of
        a stream is on its way: the launches of the next step would keep the interpreter from the event loop at each of
        its turns.
        """
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._events.put_nowait, item)
            if not isinstance(item, Reading):
                self.begun.wait(HANDOVER_SECONDS)
                self.begun.set()

    async def next(self) -> Event:
        """The next event; RequestError if the work failed, ClientDisconnect if the client has left."""
        item = await self._events.get()
        if item is None or self._gone.done():
            raise ClientDisconnect
        if isinstance(item, Failed):
            raise item.error
        return item

    async def next_within(self, seconds: float) -> Event | None:
        """The same; None if it does not come in so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.next()
        return None

    def leave(self) -> None:
        """No more events are wanted."""
        self.begun.set()
        self._gone.cancel()
        if self.ticket is not None:
            self.worker.cancel(self.ticket)


class Ahead(Protocol):
    """Looks at requests that wait."""

    pool: Executor

    def check(self, ticket: Ticket) -> None:
        """Raise what would refuse a request before a model reads any of it."""


async def accepted(answer: Answer, ahead: Ahead) -> Event | None:
    """The first event of a stream; None where there is none by the time its headers have to go out. Until then what
    refuses the request is raised, also if the worker is not there yet: another thread looks at those that wait.
    """
    ticket, loop = answer.ticket, asyncio.get_running_loop()
    assert ticket is not None, "the request is queued"
    end = loop.time() + ACCEPT_SECONDS
    if not ticket.at_work:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await loop.run_in_executor(ahead.pool, ahead.check, ticket)
        end = end if ticket.at_work else loop.time()
    return await answer.next_within(max(0.0, end - loop.time()))


class EventStream(Response):
    """Server-sent events; drops a reader that stalls, and ends the work when it ends. `first`: the first event, if it
    is there.
    """

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, first: Event | None, reply: Writer, limits: Limits) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._answer, self._limits, self._reply = answer, limits, reply
        self._chunks = _chunks(answer, first, reply, limits.silent_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks:
                async with asyncio.timeout(self._limits.stall_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientDisconnect, TimeoutError):
            pass
        except asyncio.CancelledError:  # the server ends
            await send({"type": "http.response.body", "body": self._reply.failed(stopping()), "more_body": False})
        finally:
            self._answer.leave()


async def _chunks(answer: Answer, item: Event | None, reply: Writer, silent: float) -> AsyncIterator[bytes]:
    """What is sent: events of the stream, and where there is none for so many seconds what shows that it lives. An
    error after the headers is the last event.
    """
    try:
        if item is None:
            yield reply.begin()
        while not isinstance(item, Done):
            if isinstance(item, Piece | Ended):
                yield reply.piece(item) if isinstance(item, Piece) else reply.ended(item)
                answer.begun.set()  # it is sent: the one who iterates has come back
            else:
                yield reply.progress(item) if isinstance(item, Reading) else reply.ping
            item = await answer.next_within(silent)
        yield reply.last(item)
    except RequestError as error:
        answer.worker.metrics.refused(error)
        yield reply.failed(error)


async def disconnected(request: Request) -> None:
    """Return when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
