"""Score by one middle layer, without rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.scoring.attention.attention import LayerSet, Rotary
from sp.scoring.attention.tail import TailScorer
from sp.scoring.base import register_scorer


@register_scorer("mid_layer")
@dataclass(frozen=True)
class MidLayerScorer(TailScorer):
    """`tail` of the middle attention layer alone, its queries and keys un-rotated: relevance without position.

    Everything from the question on asks, all heads and queries count equally. Half of the drafter is never run.

    Notes
    -----
    After the scoring layer of LongAttnComp (arXiv 2606.01336), here untrained.
    """

    queries: int | Literal["question"] = "question"
    rotary: Rotary = "none"
    over_heads: Literal["max", "mean"] = "mean"
    layers: tuple[int, ...] | LayerSet | None = "middle"
