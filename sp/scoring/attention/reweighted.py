"""ReweightedScorer: scorers that change the attention weights of a layer before they are reduced."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sp.arrays import Floats
from sp.ops.attention.attention_rows import attention_rows
from sp.ops.attention.paged_kv import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, importance_of
from sp.scoring.base import Importance, ScoreRequest


@dataclass(frozen=True)
class ReweightedScorer(AttentionScorer):
    """Base of them. The weights of one layer, ``4 queries heads tokens`` bytes, are held at a time."""

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce what `reweighted` makes of the tail's weights."""
        fold = Fold(self.reduction(), request.by_head)

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            fold.add(self.reweighted(self.weights(q, keys), layer))

        return importance_of(fold, self.read(request, take))

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """What `reweighted` is given: softmax weights (heads, queries, tokens)."""
        return attention_rows(q, keys)

    @abstractmethod
    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Weights (heads, queries, tokens) as they count, in NumPy or on the device; those given may be changed."""
