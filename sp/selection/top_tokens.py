"""Keep the best single tokens until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.prompt.sentences import chunk_bounds
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import Constrained, best_first


@register_selector("top_tokens")
@dataclass(frozen=True)
class TopTokens(Constrained):
    """Tokens in order of their own score: SpecPrefill without chunks (arXiv 2502.02789), GemFilter (arXiv 2409.17422).

    Single tokens carry little text, so this rule lives from scores that were pooled along the prompt, from
    neighbours (SpecPC, arXiv 2506.08373, takes 64) or from a shortest run.
    """

    neighbours: int | Literal["by_length"] = 0

    def select(self, request: SelectionRequest) -> Selection:
        """Tokens by rank; see `Constrained` for what else is kept."""
        bounds = chunk_bounds(len(request.scores), 1)
        return self.take(request, bounds, request.scores, best_first(request.scores))
