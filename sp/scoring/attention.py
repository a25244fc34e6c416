"""What the attention scorers share: which queries count, with or without rotary embedding, and how to reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.arrays import Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Model
from sp.ops.rope import rope
from sp.scoring.base import Scorer
from sp.scoring.reduction import Reduction

Rotary = Literal["post", "none"]


@dataclass(frozen=True)
class AttentionScorer(Scorer):
    """Options of scorers that reduce a drafter's attention.

    Parameters
    ----------
    queries : int
        Number of query tokens whose attention counts.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, over_heads, over_queries, pool, edges
        The steps of `Reduction` and how each is done.
    """

    queries: int = 8
    rotary: Rotary = "post"
    order: str = "pool,heads,queries"
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Literal["renormalise", "zero"] = "renormalise"

    def __post_init__(self) -> None:
        check_fields(self, "attention scorer")
        if self.queries < 1:
            raise ConfigError(f"queries must be at least 1, not {self.queries}")
        self.reduction()

    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.over_heads, self.over_queries, self.pool, self.edges)


def unrotate(x: Floats, positions: Ints, model: Model) -> Floats:
    """Undo rotary embedding: a rotation by the negative position."""
    return rope(x, -positions, model.config.rope_base, model.config.rope_dim)
