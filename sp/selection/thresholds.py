"""Selectors that take all chunks above a threshold of share, mass or deviation, or before the largest fall."""

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
    """Chunks whose mean score passes a test; constraints and the keep ratio limit the result.

    Only tokens that no constraint forces are compared; the number that pass does not depend on the keep ratio.
    """

    def compare(self, request: SelectionRequest) -> tuple[Ints, Floats, Ints, Doubles]:
        """Return bounds, scores of all chunks (NaN for forced ones), and chunks and scores from best to worst."""
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
        """Select the chunks that pass, best first."""
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
        """Select the outlying chunks, best first."""
        bounds, scores, order, falling = self.compare(request)
        if len(order):
            if self.spread == "std":
                centre, deviation = float(falling.mean()), float(falling.std())
            else:
                centre = float(np.median(falling))
                deviation = NORMAL * float(np.median(np.abs(falling - centre)))
            order = order[falling > centre + self.z * deviation]
        return self.take(request, bounds, scores, order)


@register_selector("top_p")
@dataclass(frozen=True)
class TopP(ChunkThreshold):
    """The smallest set of chunks whose scores sum to `p` of the sum of all scores.

    Used on tokens, pages and blocks by LongAttnComp (arXiv 2606.01336), Twilight (arXiv 2502.02770) and FlexPrefill
    (arXiv 2502.20766). Sink and tail are excluded from the sum, of which they would be most. Negative scores count as
    zero.

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
        """Select the best chunks until they hold the share `p`."""
        bounds, scores, order, falling = self.compare(request)
        mass = np.cumsum(np.maximum(falling, 0))  # of the best chunks so far
        enough = int(np.searchsorted(mass, self.p * mass[-1])) + 1 if len(mass) and mass[-1] > 0 else 0
        return self.take(request, bounds, scores, order[:enough])


@register_selector("adaptive")
@dataclass(frozen=True)
class Adaptive(ChunkThreshold):
    """Best chunks, their number derived from the scores: at least `least` of the free tokens, at most the keep ratio.

    Parameters
    ----------
    rule : {"entropy", "elbow"}
        `entropy`: exp(H) chunks, H the entropy of the scores as a distribution; this is the number of chunks of an
        even distribution with that entropy. `elbow`: up to the largest fall between one chunk and the next.
    least : float
        Smallest share of the unprotected tokens to select, in (0, 1]; the keep ratio wins where it is smaller.
    """

    rule: Literal["entropy", "elbow"] = "elbow"
    least: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "least")

    def select(self, request: SelectionRequest) -> Selection:
        """Select chunks by rank, as many as the rule says."""
        bounds, scores, order, falling = self.compare(request)
        spent = np.cumsum(np.diff(bounds)[order])  # tokens of the best chunks so far
        protected = int(request.protected.sum())
        fewest = int(np.searchsorted(spent, self.least * (len(request.scores) - protected))) + 1
        if self.rule == "entropy":
            count = effective_number(falling)
        else:
            count = elbow(falling, fewest, int(np.searchsorted(spent, request.budget - protected, side="right")))
        return self.take(request, bounds, scores, order[: max(count, fewest)])


def effective_number(scores: Doubles) -> int:
    """Return exp(H) of scores as a distribution, rounded up; negative scores count as zero.

    >>> effective_number(np.array([1.0, 1.0, 1.0, 0.0]))
    3
    """
    shares = np.maximum(scores, 0)
    if not shares.sum() > 0:
        return 0
    shares = shares[shares > 0] / shares.sum()
    return int(np.ceil(np.exp(-(shares * np.log(shares)).sum()) - 1e-9))  # tolerate rounding of whole numbers


def elbow(falling: Doubles, fewest: int, most: int) -> int:
    """Return how many falling scores precede the largest fall, between `fewest` and `most`."""
    falls = falling[:-1] - falling[1:]  # between neighbours in rank
    window = falls[fewest - 1 : most]
    return fewest + int(window.argmax()) if len(window) else fewest
