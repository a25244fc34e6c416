"""Score by the attention of the last prompt tokens, taken layer by layer while the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass

from sp.scoring.attention.attention import AttentionScorer, importance_of
from sp.scoring.attention.reduction import Fold
from sp.scoring.base import Importance, ScoreRequest, register_scorer


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        fold = Fold(self.reduction(), request.by_head)
        return importance_of(fold, self.read(request, lambda _, q, keys: fold.add_layer(q, keys, causal=True)))
