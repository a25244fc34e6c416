"""Score as GemFilter does: one layer, the last token, logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.attention.attention_rows import attention_rows
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import Edges
from sp.scoring.attention.attention import LayerSet
from sp.scoring.attention.reweighted import ReweightedScorer
from sp.scoring.base import register_scorer


@register_scorer("gemfilter")
@dataclass(frozen=True)
class GemFilterScorer(ReweightedScorer):
    """Logits of the last token in one filter layer, averaged over the heads before any softmax, then pooled.

    The paper's layers are 13 to 19 of 32; by default it is the middle one. Layers behind it are not run. The paper
    gives the kept tokens contiguous positions: ``positions=contiguous``.

    Notes
    -----
    GemFilter (arXiv 2409.17422).
    """

    queries: int | Literal["question"] = 1
    order: str = "heads,queries,pool"
    over_heads: Literal["max", "mean"] = "mean"
    pool: int = 5
    edges: Edges = "zero"
    layers: tuple[int, ...] | LayerSet | None = "middle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries != 1:
            raise ConfigError(f"scorer gemfilter asks from the last token alone; queries must be 1, not {self.queries}")

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """Logits (heads, 1, tokens)."""
        return attention_rows(q, keys, logits=True)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """As they are."""
        return weights
