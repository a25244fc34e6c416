"""Keep the best chunks of consecutive tokens until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass

from sp.arrays import Ints
from sp.prompt.sentences import chunk_bounds
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import Constrained, best_first, check_least, unit_means


@register_selector("top_chunks")
@dataclass(frozen=True)
class TopChunks(Constrained):
    """Chunks in order of their mean score.

    This is the rule of SpecPrefill (arXiv 2502.02789), which has no constraints: `neighbours=0 sink=0 tail=0`.

    Parameters
    ----------
    chunk_size : int, optional
        Tokens in a chunk; as the scorer tells them apart if left out, see `Importance.fineness` (most: 32, as in
        SpecPrefill).
    """

    chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size is not None:
            check_least(self, 1, "chunk_size")

    def chunks(self, request: SelectionRequest) -> Ints:
        """Bounds of the chunks of a prompt, (chunks + 1,)."""
        return chunk_bounds(len(request.scores), self.chunk_size or request.fineness)

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank; see `Constrained` for what else is kept."""
        bounds = self.chunks(request)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))
