"""What selectors with a threshold have in common: the chunks they compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.selection.base import SelectionRequest
from sp.selection.ranking import best_first, unit_means
from sp.selection.top_chunks import TopChunks


@dataclass(frozen=True)
class ChunkThreshold(TopChunks):
    """Chunks whose mean score passes a test; constraints and the keep ratio cap what that gives.

    Only tokens that no constraint asks for are compared; how many pass does not depend on the keep ratio.
    """

    def compare(self, request: SelectionRequest) -> tuple[Ints, Floats, Ints, Doubles]:
        """Bounds, scores of all chunks (NaN if a chunk is kept anyway), and chunks and scores from best to worst."""
        bounds = self.chunks(request)
        scores = unit_means(request.scores, bounds, self.choosable(request))
        order = best_first(scores)
        return bounds, scores, order, scores[order].astype(np.float64)
