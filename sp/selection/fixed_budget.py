"""Keep a fixed number of tokens, however long the prompt is."""

from __future__ import annotations

from dataclasses import dataclass

from sp.config import Tokens
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import best_first, check_least, unit_means
from sp.selection.top_chunks import TopChunks


@register_selector("token_budget")
@dataclass(frozen=True)
class TokenBudget(TopChunks):
    """Chunks in order of their mean score, as far as `tokens` go.

    What a question needs of a text does not grow with the text, so results at different lengths compare better
    at equal tokens than at equal ratios (SpecPC, arXiv 2506.08373, reports 1,024 to 3,072). What is protected comes on
    top of them. The keep ratio stays a ceiling: raise it where it is the smaller of the two.

    Parameters
    ----------
    tokens : int
        Tokens to keep of those that may be left out, sink and tail among them.
    """

    tokens: Tokens = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "tokens")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks by rank, at most `tokens` tokens and what is protected."""
        bounds = self.chunks(request)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores), most=self.tokens)
