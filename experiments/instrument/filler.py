"""Text between the passages of stories: the bank and, where a task has it, text of its own kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from bank import Bank
from tokenizer import Encoder

from sp.evals.story import Story
from sp.evals.text.filler import Sentence

POOL = 600
"""Pieces of a set of phrases that a process keeps at hand."""
OWN = 0.85
"""Of the filler between stories whose task has some of its own."""
INLINE = 0.6
"""Of running text, how much begins and ends within a line."""


class Told:
    """A task's stories and its own filler in one set of phrases.

    `story`: A story of about so many passages; `stream`: text of the task's own kind in the same phrases; `running`:
    whether that is running text, so that passages may stand within its lines; `pool`: what was drawn of it.
    """

    def __init__(
        self,
        story: Callable[[random.Random, int], Story],
        stream: Iterator[Sentence] | None,
        running: bool = False,
    ) -> None:
        self.story, self.stream, self.running = story, stream, running
        self.pool: list[list[int]] = []


class Filler:
    """Draws filler as tokens."""

    def __init__(self, encoder: Encoder, bank: Bank, rng: random.Random) -> None:
        self.encoder, self.bank, self.rng = encoder, bank, rng
        ids = bank.kinds["grammar"][0]
        self.closings = encoder.decode(ids[:20_000].tolist()).splitlines()[1:-1]

    def closing(self, told: Sequence[Told], length: int) -> str:
        """The last sentence of a document, as text."""
        streams = [one.stream for one in told if one.stream]
        if streams and length > 1500:
            return next(self.rng.choice(streams)).text
        return self.rng.choice(self.closings)

    def run(self, told: Sequence[Told], size: int, plain: bool) -> tuple[list[int], bool]:
        """Filler of at most so many tokens between such stories, and whether it stands inside running text."""
        rng, own = self.rng, [one for one in told if one.stream]
        if own and rng.random() < OWN:
            one = rng.choice(own)
            if one.running and plain and rng.random() < INLINE:
                return self._within(one, size), True
            return self._own(one, size), False
        kind = rng.choices(("grammar", "prose", "code", "noise"), (0.45, 0.25, 0.2, 0.1))[0]
        ids, lines, _, stops = self.bank.kinds[kind]
        inline = plain and kind in ("grammar", "prose") and rng.random() < INLINE
        cuts = stops if inline else lines
        out: list[int] = []
        while size - len(out) > 12:
            left = min(size - len(out), len(ids) // 2)
            last = int(np.searchsorted(cuts, len(ids) - left))
            i = rng.randrange(max(1, last))
            j = int(np.searchsorted(cuts, cuts[i] + left, side="right")) - 1
            if j <= i:
                break
            out += ids[cuts[i] : cuts[j]].tolist()
            if left < 4000:
                break
        return out, inline

    def _within(self, told: Told, size: int) -> list[int]:
        """Text of the task's own that goes on with a line and ends within another."""
        assert told.stream is not None
        begin = self.encoder(f" {next(told.stream).text}\n")
        end = self.encoder(next(told.stream).text)
        left = size - len(begin) - len(end)
        return [*begin, *self._own(told, left), *end] if left >= 0 else []

    def _own(self, told: Told, size: int) -> list[int]:
        pool, stream = told.pool, told.stream
        assert stream is not None
        if len(pool) < POOL:
            pool += [self.encoder(next(stream).text + "\n") for _ in range(POOL // 10)]
        else:
            pool[self.rng.randrange(POOL)] = self.encoder(next(stream).text + "\n")
        out: list[int] = []
        at, misses = self.rng.randrange(len(pool)), 0
        while misses < 8 and size - len(out) > 12:
            piece = pool[at % len(pool)]
            at += 1
            if len(out) + len(piece) <= size:
                out += piece
            else:
                misses += 1
        return out
