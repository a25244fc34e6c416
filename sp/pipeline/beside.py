"""Tokenising on a thread of its own, beside the drafter's work on the device or the other vocabulary's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from threading import Event

from sp.pipeline.result import Reporter
from sp.prompt import Prompt, TokenisedPrompt
from sp.trace import Trace

PART = 1 / 4
"""Of a drafter's layers; launches of the first few are planned, those of the others repeated."""
Waiting = Future[tuple[TokenisedPrompt, float]]


def timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """What work on a prompt gives, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start


def awaited(waiting: Waiting, trace: Trace, name: str = "tokenise") -> TokenisedPrompt:
    """What `timed` work gives, waited for as the stage `name`; what it took before that is told as beside."""
    with trace.stage(name) as stage:
        tokenised, took = waiting.result()
    stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
    return tokenised


@contextmanager
def once_reading(
    pool: Executor, work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt, reporter: Reporter, *, later: bool
) -> Iterator[tuple[Callable[[], Waiting], Reporter]]:
    """`timed` work that begins once a drafter on several cards has read a `PART`, and at the latest at the end.

    Before that the host has no time for it: it plans launches, one card's after the other's, and all wait for them.
    Without `later`, as beside one card, it begins at once.

    Yields
    ------
    callable, Reporter
        The first begins it, if nothing has, and gives what `awaited` takes. The second shows what `reporter` does, and
        begins it where that is waited for.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from sp.pipeline.load import embedded, load
    >>> from sp.pipeline.result import silent
    >>> tokenizer = load(embedded("target")).tokenizer
    >>> work = lambda prompt: prompt.tokenise(tokenizer)
    >>> with ThreadPoolExecutor(1) as pool:
    ...     with once_reading(pool, work, Prompt("a b", ()), silent, later=True) as (begun, telling):
    ...         with telling("scoring", 28) as progress:
    ...             progress(7)
    ...         print(len(awaited(begun(), Trace())))
    2
    """
    begin = Event()

    def waited(prompt: Prompt) -> tuple[TokenisedPrompt, float]:
        begin.wait()
        return timed(work, prompt)

    @contextmanager
    def telling(what: str, total: int) -> Iterator[Callable[[int], None]]:
        left = PART * total
        with reporter(what, total) as progress:

            def told(amount: int) -> None:
                nonlocal left
                left -= amount
                if left <= 0:
                    begin.set()
                if progress is not None:
                    progress(amount)

            yield told

    def begun() -> Waiting:
        begin.set()
        return waiting

    waiting = pool.submit(waited, prompt)
    if not later:
        begin.set()
    try:
        yield begun, telling if later else reporter
    finally:
        begin.set()
