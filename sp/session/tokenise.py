"""Tokens of a prompt: encoded beside other work, and of prompts that go on from earlier ones only what is new."""

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

MARGIN = 256  # bytes that two texts must share behind a place where one is cut: more than the longest special token has


class PromptTokens:
    """Encodes prompts of one vocabulary, remembering the last ones; several threads may ask. Special tokens part a text
    into pieces that are encoded one by one, so what lies before one does not depend on what follows it. Nothing else is
    relied on: from the last special token that two prompts share, all is encoded anew.
    """

    def __init__(self, tokenizer: Tokenizer, most: int = 1) -> None:
        self.tokenizer, self._most = tokenizer, most
        self._known: list[TokenisedPrompt] = []
        self._lock = Lock()
        self._special = np.array(sorted(tokenizer.special_ids), np.int64)

    def __call__(self, prompt: Prompt) -> TokenisedPrompt:
        with self._lock:
            return self._of(prompt)

    def _of(self, prompt: Prompt) -> TokenisedPrompt:
        for known in self._known:
            if known.prompt == prompt:
                return known
        raw = np.frombuffer(prompt.text.encode("utf-8", "surrogatepass"), np.uint8)  # `encode` refuses surrogates
        shared = [(self._shared(known, prompt, raw), at) for at, known in enumerate(self._known)]
        count, at = max(shared, default=(0, 0))
        if not count:
            found = prompt.tokenise(self.tokenizer)
        else:
            known = self._known[at]
            found = self._continued(known, count, prompt, raw)
            if 2 * count > len(known):
                del self._known[at]
        self._known = [*self._known, found][-self._most :]
        return found

    def _shared(self, known: TokenisedPrompt, prompt: Prompt, raw: Bytes) -> int:
        """Tokens of an earlier prompt that a prompt begins with, up to a special one; 0 if there is none."""
        before = np.frombuffer(known.prompt.text.encode(), np.uint8)
        reach = same_start(before, raw)
        for one, other in zip_longest(_plain(known.prompt), _plain(prompt)):
            if one != other:
                reach = min([reach, *(each[0] for each in (one, other) if each is not None)])
                break
        inside = known.bytes[:, 1] <= reach - MARGIN
        found = np.flatnonzero(inside & np.isin(known.ids, self._special) & (known.bytes[:, 0] < known.bytes[:, 1]))
        return int(found[-1]) + 1 if len(found) else 0

    def _continued(self, known: TokenisedPrompt, count: int, prompt: Prompt, raw: Bytes) -> TokenisedPrompt:
        """The first `count` tokens of an earlier prompt, and what follows them in this one."""
        cut = int(known.bytes[count - 1, 1])
        plain = [(max(low - cut, 0), high - cut) for low, high in _plain(prompt) if high > cut]
        rest = self.tokenizer.encode(raw[cut:].tobytes().decode(), plain, framed=True)
        begins = int(rest.ids[0] == self.tokenizer.bos_id and rest.spans[0, 1] == 0)
        ids = np.concatenate([known.ids[:count], rest.ids[begins:]])
        spans = np.concatenate([known.bytes[:count], rest.spans[begins:] + cut])
        dropped = np.concatenate([known.dropped[known.dropped < cut], rest.dropped + cut])
        return TokenisedPrompt(prompt, ids, spans, dropped)


class Vocabularies:
    """Prompts in the vocabularies of a target and its drafter."""

    def __init__(self, target: Loaded, drafter: Loaded | None, most: int = 1) -> None:
        self.target = PromptTokens(target.tokenizer, most)
        alike = drafter is None or drafter.tokenizer.same_as(target.tokenizer)
        self.drafter = self.target if alike or drafter is None else PromptTokens(drafter.tokenizer, most)


def _plain(prompt: Prompt) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in prompt.spans if span.kind == "plain"]


PART = 1 / 4  # of a drafter's layers; launches of the first few are planned, those of the others repeated
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
    """`timed` work that begins once a drafter on several GPUs has read a `PART`, and at the latest at the end. Before
    that the host has no time for it: it plans launches, one GPU's after the other's, and all wait for them. Without
    `later`, as beside one GPU, it begins at once. Yields callable, Reporter: the first begins it, if nothing has, and
    gives what `awaited` takes. The second shows what `reporter` does, and begins it where that is waited for.
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
