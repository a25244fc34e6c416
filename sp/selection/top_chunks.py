"""Keep the best chunks of consecutive tokens until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass

from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.constraints import Constrained, check_least
from sp.selection.units import best_first, chunk_bounds, unit_means


@register_selector("top_chunks")
@dataclass(frozen=True)
class TopChunks(Constrained):
    """Chunks in order of their mean score.

    This is the rule of SpecPrefill (arXiv 2502.02789), which has no constraints: `neighbours=0 sink=0 tail=0`.

    Parameters
    ----------
    chunk_size : int
        Tokens in a chunk (SpecPrefill uses 32).
    """

    chunk_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "chunk_size")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank; see `Constrained` for what else is kept."""
        bounds = chunk_bounds(len(request.scores), self.chunk_size)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))
