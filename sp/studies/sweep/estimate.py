"""How long runs will take: work counted from configurations, rates fitted to earlier runs or to a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.models import ModelConfig
from sp.models.network.cost import flops
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.selection import token_budget


@dataclass(frozen=True)
class Work:
    """What a run does: floating-point operations of all prefills, and answers, or rows where none are asked for."""

    flop: float
    answers: int


@dataclass(frozen=True)
class Estimate:
    """Seconds of work: a rate for the prefills, and a cost of each answer (decoding, text, launches).

    `source`: what it rests on, for the message.
    """

    seconds_per_flop: float
    seconds_per_answer: float
    source: str

    def seconds(self, work: Work) -> float:
        """Predicted seconds."""
        return self.seconds_per_flop * work.flop + self.seconds_per_answer * work.answers


TYPICAL = {"cpu": Estimate(1e-11, 0.1, "a laptop"), "cuda": Estimate(2e-15, 0.03, "an H200")}
"""To weigh runs against each other, small against large, before anything is measured; not to tell a time by."""


def work_of(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig) -> Work:
    """Work of a run from its stored configuration.

    Cells that share a scorer share one scoring: a pass of the drafter, what the scorer says if the target reads, or
    nothing if no model does. Of task natural, the target reads only where it is asked for answers.
    """
    tokens, count = config["tokens"], config["count"]
    scorers = {repr(cell["scorer"]): cell["scorer"] for cell in config["cells"]}
    flop = sum(_scoring(each, target, drafter, tokens) for each in scorers.values())
    task = config.get("task", {})
    if task.get("name") != "natural" or task.get("answers"):
        flop += flops(target, tokens) if config.get("full") else 0.0
        flop += sum(flops(target, token_budget(cell["keep_ratio"], tokens)) for cell in config["cells"])
    return Work(count * flop, count * (len(config["cells"]) + bool(config.get("full"))))


def _scoring(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig, tokens: int) -> float:
    """Operations of a scorer as it is stored; one from outside may not be imported."""
    name = config["name"]
    kind = SCORERS.class_of(name) if name in SCORERS else Scorer
    if issubclass(kind, ModelFreeScorer):
        return 0.0
    if not kind.reads_target:
        return flops(drafter, tokens)
    options = {key: value for key, value in config.items() if key != "name"}
    return SCORERS.build(name, options).flops(target, tokens)


def fit(works: Sequence[Work], seconds: Sequence[float], source: str) -> Estimate:
    """Least squares over measured runs; neither rate may be negative.

    Relative errors count, so that short runs speak as loudly as long ones.

    Examples
    --------
    >>> estimate = fit([Work(1e9, 10), Work(8e9, 10)], [1.1, 8.1], "2 runs")
    >>> round(estimate.seconds(Work(4e9, 20)), 3)
    4.2
    """
    measured = np.maximum(np.asarray(seconds, np.float64), 1e-9)
    table = np.array([[work.flop, work.answers] for work in works], np.float64) / measured[:, None]
    scale = np.maximum(np.abs(table).max(axis=0), 1e-30)
    table /= scale
    ones = np.ones(len(works))
    rates = np.linalg.lstsq(table, ones, rcond=None)[0] if len(works) > 1 else np.full(2, -1.0)
    if rates.min() < 0:  # one of the two alone, whichever fits better
        single = [np.eye(2)[i] * (table[:, i] @ ones) / max(table[:, i] @ table[:, i], 1e-30) for i in (0, 1)]
        rates = min(single, key=lambda each: float(np.square(table @ each - 1).sum()))
    return Estimate(float(rates[0] / scale[0]), float(rates[1] / scale[1]), source)


def deal(works: Sequence[float], shards: int) -> list[int]:
    """Shard (0 to ``shards - 1``) of each run: the longest first, each to the shard with least to do.

    Examples
    --------
    >>> deal([5.0, 1.0, 4.0, 2.0], 2)
    [0, 0, 1, 1]
    """
    loads = np.zeros(shards)
    dealt = [0] * len(works)
    for index in sorted(range(len(works)), key=lambda i: (-works[i], i)):
        dealt[index] = int(loads.argmin())
        loads[dealt[index]] += works[index]
    return dealt
