"""Tokenisation of prompts: overlapped with other work, and reusing the tokens of earlier prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import zip_longest
from threading import Event, Lock

import numpy as np

from sp.arrays import Bytes
from sp.gguf import Tokenizer
from sp.prompt import Prompt, TokenisedPrompt
from sp.prompt.spans import same_start
from sp.session.loaded import Loaded
from sp.trace import Reporter, Trace

MARGIN = 256  # bytes that two texts must share after a reused token: more than the longest special token has


class CachingTokeniser:
    """Encodes prompts in one vocabulary and remembers the last ones; thread-safe.

    Special tokens split a text into pieces that are encoded independently, so the tokens before one do not depend on
    the text after it. Nothing else is assumed: after the last special token that two prompts share, all is encoded
    again.
    """

    def __init__(self, tokenizer: Tokenizer, most: int = 1) -> None:
        self.tokenizer, self._most = tokenizer, most
        self._known: list[TokenisedPrompt] = []
        self._lock = Lock()
        self._special = np.array(sorted(tokenizer.special_ids), np.int64)

    def __call__(self, prompt: Prompt) -> TokenisedPrompt:
        with self._lock:
            return self._tokenise(prompt)

    def _tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        for known in self._known:
            if known.prompt == prompt:
                return known
        raw = np.frombuffer(prompt.text.encode("utf-8", "surrogatepass"), np.uint8)  # `encode` refuses surrogates
        shared = [(self._shared(known, prompt, raw), index) for index, known in enumerate(self._known)]
        count, index = max(shared, default=(0, 0))
        if not count:
            tokenised = prompt.tokenise(self.tokenizer)
        else:
            known = self._known[index]
            tokenised = self._continued(known, count, prompt, raw)
            if 2 * count > len(known):  # the same conversation, one turn later
                del self._known[index]
        self._known = [*self._known, tokenised][-self._most :]
        return tokenised

    def _shared(self, known: TokenisedPrompt, prompt: Prompt, raw: Bytes) -> int:
        """Return how many tokens of an earlier prompt can be reused, up to a special one; 0 if there is none."""
        before = np.frombuffer(known.prompt.text.encode(), np.uint8)
        reach = same_start(before, raw)
        # The same bytes are encoded differently where one text is plain and the other is not.
        for old, new in zip_longest(_plain(known.prompt), _plain(prompt)):
            if old != new:
                reach = min([reach, *(span[0] for span in (old, new) if span is not None)])
                break
        inside = known.bytes[:, 1] <= reach - MARGIN  # (n,) tokens far enough before the first difference
        special = np.isin(known.ids, self._special) & (known.bytes[:, 0] < known.bytes[:, 1])
        reusable = np.flatnonzero(inside & special)
        return int(reusable[-1]) + 1 if len(reusable) else 0

    def _continued(self, known: TokenisedPrompt, count: int, prompt: Prompt, raw: Bytes) -> TokenisedPrompt:
        """Return the first `count` tokens of an earlier prompt, and the newly encoded rest of this one."""
        offset = int(known.bytes[count - 1, 1])
        # Relative to the rest.
        plain = [(max(low - offset, 0), high - offset) for low, high in _plain(prompt) if high > offset]
        rest = self.tokenizer.encode(raw[offset:].tobytes().decode(), plain, framed=True)
        # The rest was encoded like a whole text; its BOS, if any, is dropped.
        begins = int(rest.ids[0] == self.tokenizer.bos_id and rest.spans[0, 1] == 0)
        ids = np.concatenate([known.ids[:count], rest.ids[begins:]])
        spans = np.concatenate([known.bytes[:count], rest.spans[begins:] + offset])
        dropped = np.concatenate([known.dropped[known.dropped < offset], rest.dropped + offset])
        return TokenisedPrompt(prompt, ids, spans, dropped)


class Vocabularies:
    """Tokenisers of a target and its drafter; a single one if their vocabularies are equal."""

    def __init__(self, target: Loaded, drafter: Loaded | None, most: int = 1) -> None:
        self.target = CachingTokeniser(target.tokenizer, most)
        alike = drafter is None or drafter.tokenizer.same_as(target.tokenizer)
        self.drafter = self.target if alike or drafter is None else CachingTokeniser(drafter.tokenizer, most)


def _plain(prompt: Prompt) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in prompt.spans if span.kind == "plain"]


PART = 1 / 4  # of a drafter's work, after which its launches are replayed instead of prepared
Waiting = Future[tuple[TokenisedPrompt, float]]


def timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """Return the result of work on a prompt, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start


def awaited(waiting: Waiting, trace: Trace, name: str = "tokenise") -> TokenisedPrompt:
    """Return the result of `timed` work, waiting for it in the stage `name`, which also notes the overlapped time."""
    with trace.stage(name) as stage:
        tokenised, took = waiting.result()
    stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
    return tokenised


@contextmanager
def once_reading(
    pool: Executor, work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt, reporter: Reporter, *, later: bool
) -> Iterator[tuple[Callable[[], Waiting], Reporter]]:
    """Run `timed` work overlapped with a drafter that reads a prompt.

    With `later` the work starts once a drafter on several GPUs has read a `PART`, and at the latest at the end: before
    that the host has no time for it, because it prepares launches for one GPU after the other, and all GPUs wait for
    them. Without `later`, as next to a single GPU, it starts at once.

    Yields
    ------
    started : callable
        Starts the work if it has not started, and returns what `awaited` takes.
    reporter : Reporter
        Passes progress on to `reporter`, and starts the work when due.
    """
    start = Event()

    def waited(prompt: Prompt) -> tuple[TokenisedPrompt, float]:
        start.wait()
        return timed(work, prompt)

    @contextmanager
    def watching(label: str, total: int) -> Iterator[Callable[[int], None]]:
        remaining = PART * total
        with reporter(label, total) as progress:

            def advance(amount: int) -> None:
                nonlocal remaining
                remaining -= amount
                if remaining <= 0:
                    start.set()
                if progress is not None:
                    progress(amount)

            yield advance

    def started() -> Waiting:
        start.set()
        return waiting

    waiting = pool.submit(waited, prompt)  # the thread waits for `start` before it works
    if not later:
        start.set()
    try:
        yield started, watching if later else reporter
    finally:
        start.set()
