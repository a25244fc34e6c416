"""Keep the best whole sentences until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass

from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.ranking import Constrained, best_first, check_least, sentence_bounds, unit_means


@register_selector("sentence")
@dataclass(frozen=True)
class Sentence(Constrained):
    """Sentences in order of their mean score, so that kept text is cut where a reader would cut it.

    Compression by phrases is due to Selective Context (arXiv 2304.12102), there by self-information.

    Parameters
    ----------
    longest : int
        Sentences of more tokens are cut into equal parts; text without sentences consists of such parts.
    """

    longest: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "longest")

    def select(self, request: SelectionRequest) -> Selection:
        """Sentences by rank; see `Constrained` for what else is kept."""
        bounds = sentence_bounds(request, self.longest)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))
