"""Selectors that take all chunks or tokens over a threshold: of share, mass, deviation, or the largest fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.errors import ConfigError
from sp.prompt.spans import chunk_bounds
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import TopChunks, best_first, check_share, unit_means


@dataclass(frozen=True)
class ChunkThreshold(TopChunks):
    """Chunks whose mean score passes a test; constraints and the keep ratio cap what that gives.

    Only tokens that no constraint asks for are compared; how many pass does not depend on the keep ratio.
    """

    def compare(self, request: SelectionRequest) -> tuple[Ints, Floats, Ints, Doubles]:
        """Bounds, scores of all chunks (NaN if a chunk is kept anyway), and chunks and scores from best to worst."""
        bounds = chunk_bounds(len(request.scores), self.chunk_size or request.fineness)
        scores = unit_means(request.scores, bounds, self.choosable(request))
        order = best_first(scores)
        return bounds, scores, order, scores[order].astype(np.float64)


@register_selector("alpha")
@dataclass(frozen=True)
class Alpha(ChunkThreshold):
    """Chunks with a score above `alpha` times the maximum, or times the mean, of all chunks.

    The test FlashPrefill (arXiv 2603.06199) applies to blocks of attention, here applied to the text.

    Parameters
    ----------
    alpha : float
        Positive; below 1 with the maximum, which nothing exceeds.
    of : {"max", "mean"}
    """

    alpha: float = 0.1
    of: Literal["max", "mean"] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < float("inf") or (self.of == "max" and self.alpha >= 1):
            bound = "above 0 and below 1 with of=max" if self.of == "max" else "a positive number"
            raise ConfigError(f"alpha must be {bound}, not {self.alpha:g}")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks that pass, best first."""
        bounds, scores, order, falling = self.compare(request)
        if len(order):
            order = order[falling > self.alpha * (falling[0] if self.of == "max" else falling.mean())]
        return self.take(request, bounds, scores, order)


NORMAL = 1.4826  # standard deviations in a median absolute deviation, for a normal distribution


@register_selector("zscore")
@dataclass(frozen=True)
class ZScore(ChunkThreshold):
    """Chunks with a score above centre + z * spread.

    Parameters
    ----------
    z : float
    spread : {"std", "mad"}
        Mean and standard deviation, or median and median absolute deviation (scaled to agree with the former on
        a normal distribution), which a few very important chunks do not move.
    """

    z: float = 2.0
    spread: Literal["std", "mad"] = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.z):
            raise ConfigError(f"z must be a finite number, not {self.z:g}")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks that stand out, best first."""
        bounds, scores, order, falling = self.compare(request)
        if len(order):
            if self.spread == "std":
                centre, spread = float(falling.mean()), float(falling.std())
            else:
                centre = float(np.median(falling))
                spread = NORMAL * float(np.median(np.abs(falling - centre)))
            order = order[falling > centre + self.z * spread]
        return self.take(request, bounds, scores, order)


@register_selector("top_p")
@dataclass(frozen=True)
class TopP(ChunkThreshold):
    """The smallest set of chunks whose scores sum to `p` of the sum of all scores.

    Used on tokens, pages and blocks by LongAttnComp (arXiv 2606.01336), Twilight (arXiv 2502.02770) and
    FlexPrefill (arXiv 2502.20766). Sinks and the tail are left out of the sum; with them in it, they alone are most of
    it. Negative scores count as zero.

    Parameters
    ----------
    p : float
        In (0, 1].
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "p")

    def select(self, request: SelectionRequest) -> Selection:
        """Best chunks until their share is reached."""
        bounds, scores, order, falling = self.compare(request)
        mass = np.cumsum(np.maximum(falling, 0))
        enough = int(np.searchsorted(mass, self.p * mass[-1])) + 1 if len(mass) and mass[-1] > 0 else 0
        return self.take(request, bounds, scores, order[:enough])


@register_selector("adaptive")
@dataclass(frozen=True)
class Adaptive(ChunkThreshold):
    """A number of best chunks read off their scores, at least `least` of what may be left out, at most the keep ratio.

    Parameters
    ----------
    rule : {"entropy", "elbow"}
        `entropy`: exp(H) chunks, H the entropy of the scores as a distribution, which is the number of chunks an
        even distribution of that entropy has. `elbow`: up to the largest fall between one chunk and the next.
    least : float
        Smallest share of the tokens that may be left out to choose, in (0, 1]; where it is above the keep ratio, the
        latter holds.
    """

    rule: Literal["entropy", "elbow"] = "elbow"
    least: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "least")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank, as many as the rule says."""
        bounds, scores, order, falling = self.compare(request)
        spent = np.cumsum(np.diff(bounds)[order])
        protected = int(request.protected.sum())
        fewest = int(np.searchsorted(spent, self.least * (len(request.scores) - protected))) + 1
        if self.rule == "entropy":
            count = effective_number(falling)
        else:
            count = elbow(falling, fewest, int(np.searchsorted(spent, request.budget - protected, side="right")))
        return self.take(request, bounds, scores, order[: max(count, fewest)])


def effective_number(scores: Doubles) -> int:
    """exp(H) of scores as a distribution, rounded up; negative ones count as zero.

    >>> effective_number(np.array([1.0, 1.0, 1.0, 0.0]))
    3
    """
    shares = np.maximum(scores, 0)
    if not shares.sum() > 0:
        return 0
    shares = shares[shares > 0] / shares.sum()
    return int(np.ceil(np.exp(-(shares * np.log(shares)).sum()) - 1e-9))


def elbow(falling: Doubles, fewest: int, most: int) -> int:
    """How many falling scores stand before the largest fall, among `fewest` to `most`."""
    falls = falling[:-1] - falling[1:]
    window = falls[fewest - 1 : most]
    return fewest + int(window.argmax()) if len(window) else fewest
