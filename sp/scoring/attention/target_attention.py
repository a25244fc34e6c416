"""Score by the attention of the target itself: what a perfect drafter would say."""

from __future__ import annotations

from dataclasses import dataclass

from sp.scoring.attention.tail import TailScorer
from sp.scoring.base import register_scorer


@register_scorer("target_attention")
@dataclass(frozen=True)
class TargetAttentionScorer(TailScorer):
    """`tail` with the target as its own drafter.

    It saves no time, since the target reads everything first. What is lost here too is lost by the method, what only
    the drafter loses is lost by the drafter.
    """

    reads_target = True
