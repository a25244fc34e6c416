"""Keep the fewest chunks that hold a given share of all importance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import check_share
from sp.selection.thresholds import ChunkThreshold


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
