"""Score by the attention of some of the drafter's layers."""

from __future__ import annotations

from dataclasses import dataclass

from sp.scoring.attention.attention import LayerSet
from sp.scoring.attention.tail import TailScorer
from sp.scoring.base import register_scorer


@register_scorer("layer_subset")
@dataclass(frozen=True)
class LayerSubsetScorer(TailScorer):
    """`tail` over the later half of the attention layers, where heads that retrieve are most often found.

    Notes
    -----
    GemFilter (arXiv 2409.17422) and LongAttnComp (arXiv 2606.01336) filter by one layer; this takes any set of them.
    """

    layers: tuple[int, ...] | LayerSet | None = "last_half"
