"""Score as SnapKV votes for the tokens of a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sp.arrays import Floats
from sp.scoring.attention.reweighted import ReweightedScorer
from sp.scoring.base import Importance, ScoreRequest, register_scorer


@register_scorer("snapkv")
@dataclass(frozen=True)
class SnapKVScorer(ReweightedScorer):
    """Attention of a window of last tokens: averaged over them, pooled in each head, then the maximum over heads.

    The window's own tokens get no vote and come first. Where SnapKV keeps other tokens in every head, a prompt has to
    be one for all: the maximum is the union of what heads want, ``over_heads=mean`` their vote.

    Notes
    -----
    SnapKV (arXiv 2404.14469).
    """

    queries: int | Literal["question"] = 32
    order: str = "queries,pool,heads"
    pool: int = 7

    def score(self, request: ScoreRequest) -> Importance:
        """See `ReweightedScorer`; the window scores as high as the best of the others."""
        found = super().score(request)
        scores = found.scores.copy()
        scores[len(scores) - self.query_count(request) :] = scores.max()
        return replace(found, scores=scores)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """No vote for the window."""
        weights[..., weights.shape[-1] - weights.shape[-2] :] = 0
        return weights
