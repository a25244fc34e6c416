"""Which layers and heads retrieve, by what samples showed, judged on phrasings and texts that were left out.

Four ways of choosing compete: whole layers or single heads, un-rotated or rotated. Each chooses by one half of the
samples and is judged by the other, both ways round. The first in that order wins unless another keeps more needles by
over two standard errors: un-rotated weights do not fade with distance, which short texts cannot show, and whole layers
are simpler. What wins then chooses by all samples. Of layers that is the earliest which is no worse than the best one,
and the best of the two behind it that is not clearly worse, since one layer by itself hangs on few heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sp.arrays import Doubles, Floats
from sp.scoring.calibration.reading import ROTATIONS, Sample

MOST_HEADS = 8
SHARE = 0.05
"""A needle is kept whose chunk is among so many of all."""
CLEARLY = 2.0
"""Standard errors by which another way of choosing has to be better, or a second layer may not be worse."""
NEAR = 2
"""Layers behind the first one among which a second one is looked for."""
LEAST_KEPT = 0.2
"""Share of needles kept, left out, below which heads are taken to find nothing."""

Unit = Literal["layers", "heads"]
Rotary = Literal["none", "post"]
Heads = Mapping[int, tuple[int, ...]]
"""By place of an attention layer, its heads."""


@dataclass(frozen=True)
class Judged:
    """How well something chosen finds needles."""

    ranks: Doubles  # share of the other chunks that rank above the needle's
    log_ranks: Doubles  # logarithm of one and the number of those chunks

    @property
    def kept(self) -> Doubles:
        """One for each needle among the first 5 % of the chunks."""
        return (self.ranks <= SHARE).astype(np.float64)


@dataclass(frozen=True)
class Choice:
    """What was chosen, and how it does on what it was not chosen by.

    Parameters
    ----------
    rotary : {"none", "post"}
    unit : {"layers", "heads"}
    heads : dict of int to tuple of int
        By place among the attention layers.
    left_out : Judged
    """

    rotary: Rotary
    unit: Unit
    heads: Heads
    left_out: Judged

    @property
    def finds(self) -> bool:
        """Whether needles left out were found at all."""
        return float(self.left_out.kept.mean()) >= LEAST_KEPT


def choose(samples: Sequence[Sample]) -> Choice:
    """The best way of choosing, and what it chooses by all samples; see the module."""
    halves = [[sample for sample in samples if sample.half == half] for half in (0, 1)]
    ways: list[Choice] = []
    for unit in ("layers", "heads"):
        for rotary in ("none", "post"):
            parts = [judge(halves[1 - half], rotary, choose_by(halves[half], rotary, unit)) for half in (1, 0)]
            left_out = Judged(*(np.concatenate(pair) for pair in zip(*map(_pair, parts), strict=True)))
            ways.append(Choice(rotary, unit, {}, left_out))
    most = max(ways, key=lambda way: float(way.left_out.kept.mean()))
    way = next(way for way in ways if not worse(way.left_out.kept, most.left_out.kept, CLEARLY))
    return Choice(way.rotary, way.unit, choose_by(samples, way.rotary, way.unit), way.left_out)


def _pair(judged: Judged) -> tuple[Doubles, Doubles]:
    return judged.ranks, judged.log_ranks


def choose_by(samples: Sequence[Sample], rotary: Rotary, unit: Unit) -> dict[int, tuple[int, ...]]:
    """Up to two layers, see the module; or heads that are no worse than the best, the earliest first, `MOST_HEADS`."""
    place = ROTATIONS.index(rotary)
    if unit == "layers":
        return {layer: tuple(range(samples[0].weights.shape[2])) for layer in two_layers(samples, place)}
    scores = _log_ranks(samples, [sample.weights[place] for sample in samples])
    found: dict[int, tuple[int, ...]] = {}
    for layer, head in as_good(scores, MOST_HEADS):
        found[layer] = (*found.get(layer, ()), head)
    return found


def two_layers(samples: Sequence[Sample], place: int) -> tuple[int, ...]:
    """The layers that are chosen by samples, or the one, ascending; of one rotation."""
    scores = _log_ranks(samples, [sample.weights[place].max(axis=1) for sample in samples])
    best = scores[:, scores.mean(axis=0).argmin()]
    ((anchor,),) = as_good(scores, 1)
    near = range(anchor + 1, min(anchor + 1 + NEAR, scores.shape[1]))
    seconds = [layer for layer in near if not worse(-scores[:, layer], -best, CLEARLY)]
    return (anchor, *sorted(seconds, key=lambda layer: float(scores[:, layer].mean()))[:1])


def as_good(scores: Doubles, most: int) -> list[tuple[int, ...]]:
    """Indices of candidates (samples, ...) that are not worse than the best, in order, up to so many.

    >>> as_good(np.array([[3.0, 0.0, 1.0, 0.1], [3.0, 1.0, 0.0, 1.1]]), 2)
    [(1,), (2,)]
    """
    shape = scores.shape[1:]
    flat = scores.reshape(len(scores), -1)
    best = flat[:, flat.mean(axis=0).argmin()]
    good = [index for index in range(flat.shape[1]) if not worse(-flat[:, index], -best)]
    return [tuple(map(int, np.unravel_index(index, shape))) for index in good[:most]]


def worse(one: Doubles, other: Doubles, errors: float = 1.0) -> bool:
    """Whether one (samples,) is smaller than the other in the mean, by over so many standard errors of the difference.

    >>> worse(np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0])), worse(np.zeros(9), np.ones(9))
    (False, True)
    """
    less = other - one
    return bool(less.mean() > errors * less.std(ddof=1) / np.sqrt(len(less)) + 1e-12) if len(less) > 1 else False


def judge(samples: Sequence[Sample], rotary: Rotary, heads: Heads) -> Judged:
    """How the needles of samples rank by the largest weight of some heads."""
    place = ROTATIONS.index(rotary)
    pooled = [
        np.stack([sample.weights[place, layer, list(own)].max(axis=0) for layer, own in heads.items()]).max(axis=0)
        for sample in samples
    ]
    counts = np.array([sample.rank(weights.mean(axis=-1)) for sample, weights in zip(samples, pooled, strict=True)])
    chunks = np.array([len(weights) - 2 for weights in pooled])  # without the first and one of the needle's own
    return Judged(counts / chunks, np.log1p(counts))


def _log_ranks(samples: Sequence[Sample], weights: Sequence[Floats]) -> Any:
    """Of weights (..., chunks, tokens) of each sample: float64 (samples, ...)."""
    pairs = zip(samples, weights, strict=True)
    return np.stack([np.log1p(sample.rank(one.mean(axis=-1))) for sample, one in pairs])
