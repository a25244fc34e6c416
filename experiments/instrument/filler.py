"""Text between the passages of stories: the bank of `needle_pair` and, where a task has it, text of its own kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from pieces import Bank
from tokenizer import Encoder

from sp.evals import TASKS
from sp.evals.story import StoryTask

POOL = 600
"""Pieces of a task's own filler that a process keeps at hand."""


def own_filler(name: str) -> Callable[[random.Random], Any] | None:
    """Sentences of a task's own kind in training phrases, if it has such."""
    cls = None if name == "world" else TASKS.class_of(name)
    if cls is None or cls.filler is StoryTask.filler:  # type: ignore[attr-defined]
        return None
    task: Any = TASKS.build(name, {})
    phrases = import_module(f"phrases.{name}").TRAIN
    return lambda rng: task.filler(rng, phrases)


class Filler:
    """Draws filler as tokens."""

    def __init__(self, encoder: Encoder, bank: Bank, rng: random.Random, names: Sequence[str], seed: int) -> None:
        self.encoder, self.bank, self.rng = encoder, bank, rng
        self.pools: dict[str, list[list[int]]] = {}
        ids = bank.kinds["grammar"][0]
        self.closings = encoder.decode(ids[:20_000].tolist()).splitlines()[1:-1]
        fillers = {name: own_filler(name) for name in names}
        self.streams = {name: make(random.Random(seed + 7)) for name, make in fillers.items() if make}

    def closing(self, names: list[str], length: int) -> str:
        """The last sentence of a document, as text."""
        own = [name for name in names if name in self.streams]
        if own and length > 1500:
            return str(next(self.streams[self.rng.choice(own)]).text)
        return self.rng.choice(self.closings)

    def run(self, names: list[str], size: int, plain: bool) -> tuple[list[int], bool]:
        """Filler of at most so many tokens for stories of these names, and whether it stands inside running text."""
        kind = self._kind(names)
        if kind in self.streams:
            return self._own(kind, size), False
        rng, (ids, lines, _, stops) = self.rng, self.bank.kinds[kind]
        inline = plain and kind in ("grammar", "prose") and rng.random() < 0.6
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

    def _own(self, name: str, size: int) -> list[int]:
        pool, stream = self.pools.setdefault(name, []), self.streams[name]
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

    def _kind(self, names: list[str]) -> str:
        own = [name for name in names if name in self.streams]
        if own and self.rng.random() < 0.8:
            return self.rng.choice(own)
        return self.rng.choices(("grammar", "prose", "code", "noise"), (0.45, 0.25, 0.2, 0.1))[0]
