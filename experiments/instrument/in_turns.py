"""Stages that take turns, step by step, until the time is over: no length is forgotten while another is read.

A configuration with ``together: SECONDS`` trains so. `Stage.turns` says how many steps a stage takes in a round and
`Stage.workers` how many processes write its batches; the rate of all falls along one line by time, from the first
factor of `Stage.shape` to its last. `Stage.seconds` and `Stage.until` say nothing here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

from feed import Stage


class Steps(Protocol):
    """A training step that adds up what it saw."""

    def __call__(self, batch: dict[str, Any]) -> None: ...

    def seen(self) -> dict[str, Any]: ...


class Batches(Protocol):
    """Where batches of one stage come from."""

    def next(self) -> dict[str, Any]: ...


@dataclass
class Turn:
    """A stage, its step, its batches, and how many steps it has taken."""

    stage: Stage
    step: Steps
    batches: Batches
    taken: int = 0


def order(stages: list[Stage]) -> list[int]:
    """Whose turn it is, over a round: the steps of every stage spread evenly.

    >>> order([Stage("a", 8, 1, 0, 1, turns=1), Stage("b", 4, 1, 0, 1, turns=4)])
    [1, 1, 0, 1, 1]
    """
    places = [((j + 0.5) / s.turns, i) for i, s in enumerate(stages) for j in range(s.turns)]
    return [i for _, i in sorted(places)]


def rates(stage: Stage, steps: int, share: float) -> tuple[float, float]:
    """Rates of AdamW and of matrices after so many steps of a stage, when a share of its time is over."""
    first, final = stage.shape
    now = stage.lr * min(1.0, steps / stage.warmup) * (first + (final - first) * min(1.0, share))
    return now, now * stage.muon


def check_finite(seen: dict[str, Any]) -> None:
    """End the training if a loss is no number: nothing is learned from there on."""
    if not math.isfinite(seen["loss"]):
        raise SystemExit("loss is not finite")


def train(
    stages: list[Stage],
    feeds: list[Batches],
    begin: Callable[[Stage], Steps],
    left: Callable[[], float],
    set_rates: Callable[[float, float], None],
    emit: Callable[[dict[str, Any]], None],
    log_seconds: float,
    sync: Callable[[], None],
    clock: Callable[[], float] = time.time,
) -> Iterator[int]:
    """Take steps until what is left of the time is over; yields the tokens of each.

    The first step of a stage, in which it is compiled and captured, is taken at a rate of 0 and before the time counts.
    """
    waited, turns = 0.0, []

    def take(turn: Turn) -> int:
        nonlocal waited
        before = clock()
        batch = turn.batches.next()
        waited += clock() - before
        turn.step(batch)
        turn.taken += 1
        return turn.stage.batch * turn.stage.length

    set_rates(0.0, 0.0)
    for stage, batches in zip(stages, feeds, strict=True):
        turns.append(Turn(stage, begin(stage), batches))
        yield take(turns[-1])
        sync()
    waited, start, seconds = 0.0, clock(), left()
    last = start
    for count, i in enumerate(cycle(order(stages))):
        used = clock() - start
        if used >= seconds:
            break
        set_rates(*rates(turns[i].stage, turns[i].taken, used / seconds))
        yield take(turns[i])
        if count % 4 == 0:
            sync()
        if clock() - last > log_seconds:
            for turn in turns:
                seen = turn.step.seen()
                emit({"stage": turn.stage.name, "step": turn.taken, "seconds": round(clock() - start, 1)}
                     | seen | {"share": round(used / seconds, 3), "waited": round(waited, 1)})  # fmt: skip
                check_finite(seen)
            last = clock()
