"""Keep more where importance is spread out and less where it is concentrated, between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Doubles
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import check_share
from sp.selection.thresholds import ChunkThreshold


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
