"""Tokenising beside a drafter on several GPUs: when it begins, and that it always does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sp.prompt import Prompt
from sp.session.tokenise import PART, awaited, once_reading
from sp.trace import Trace, silent

PROMPT, TOTAL = Prompt("a b", ()), 28
FIRST = round(PART * TOTAL)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_it_begins_with_the_part_and_not_before(pool) -> None:
    done = []
    with (
        once_reading(pool, done.append, PROMPT, silent, later=True) as (begun, telling),
        telling("scoring", TOTAL) as progress,
    ):
        for _ in range(FIRST - 1):
            progress(1)
        assert pool._work_queue.qsize() == 0  # taken by the thread, which waits
        assert not done
        progress(1)
        awaited_by_the_end = begun()
        assert awaited_by_the_end.result(5)[0] is None
    assert done == [PROMPT]


def test_who_asks_for_it_begins_it(pool) -> None:
    with once_reading(pool, lambda prompt: prompt.text, PROMPT, silent, later=True) as (begun, _):
        assert begun().result(5)[0] == "a b"


def test_beside_one_gpu_it_begins_at_once(pool) -> None:
    with once_reading(pool, lambda prompt: prompt.text, PROMPT, silent, later=False) as (_, telling):
        assert pool.submit(len, "behind it").result(5) == 9
        assert telling is silent


def test_an_error_leaves_no_thread_that_waits(pool) -> None:
    done = []

    def fails() -> None:
        with once_reading(pool, done.append, PROMPT, silent, later=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert pool.submit(len, "next").result(5) == 4
    assert done == [PROMPT]


def test_progress_is_shown_as_before(pool) -> None:
    shown = []

    @contextmanager
    def reporter(what: str, total: int):
        shown.append((what, total))
        yield shown.append

    with once_reading(pool, len, PROMPT, reporter, later=True) as (_, telling), telling("scoring", TOTAL) as progress:
        progress(3)
        progress(25)
    assert shown == [("scoring", TOTAL), 3, 25]


def test_what_it_takes_is_told_as_beside(pool) -> None:
    trace = Trace()
    with once_reading(pool, lambda prompt: [prompt], PROMPT, silent, later=True) as (begun, _):
        assert awaited(begun(), trace) == [PROMPT]
    assert [(stage.name, stage.tokens) for stage in trace.stages] == [("tokenise", 1)]
