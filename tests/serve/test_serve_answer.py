"""The hand-over of events from the worker's thread to the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sp.serve import streams
from sp.serve.streams import TicketEvents
from sp.serve.text import Piece


def answer(stream: bool) -> TicketEvents:
    """Of a client that stays."""
    never: Any = SimpleNamespace(receive=asyncio.Event().wait)
    return TicketEvents(SimpleNamespace(), never, stream)  # type: ignore[arg-type]


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_a_stalled_loop_holds_the_worker_only_shortly_and_once() -> None:
    async def stalled() -> tuple[list[float], list[str]]:
        told = answer(stream=True)
        pieces = [Piece("a"), Piece("b"), Piece("c")]
        waiting = asyncio.to_thread(lambda: [seconds(lambda item=item: told.emit(item)) for item in pieces])
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        time.sleep(0.3)
        return await task, [(await told.next()).text for _ in pieces]

    took, texts = asyncio.run(stalled())
    assert texts == ["a", "b", "c"]
    assert sum(took) < 0.2, took


def test_the_worker_goes_on_when_the_first_piece_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HANDOVER_SECONDS", 20.0)

    async def served(stream: bool) -> float:
        told = answer(stream)
        task = asyncio.ensure_future(asyncio.to_thread(seconds, lambda: told.emit(Piece("a"))))
        await told.next()
        if stream:
            await asyncio.sleep(0.2)
            assert not task.done(), "the worker did not wait"
            told.first_sent.set()
        return await task

    assert 0.1 < asyncio.run(served(stream=True)) < 10
    assert asyncio.run(served(stream=False)) < 10
