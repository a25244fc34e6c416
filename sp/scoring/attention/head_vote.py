"""Score by how many heads rank a chunk among their best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.array_module import array_module
from sp.ops.attention.reduction import chunk_means
from sp.scoring.attention.reweighted import ReweightedScorer
from sp.scoring.base import register_scorer

RANK_OFFSET = 60
"""Of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)."""


@register_scorer("head_vote")
@dataclass(frozen=True)
class HeadVoteScorer(ReweightedScorer):
    """Every head of every layer and query votes for chunks; a token scores its chunk's mean vote.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk.
    vote : {"count", "reciprocal"}
        One vote for each chunk among the best, or ``1 / (60 + rank)`` for every chunk.
    top : float
        Share of the chunks that get a vote when votes are counted; at least one does.
    """

    over_heads: Literal["max", "mean"] = "mean"
    pool: int = 1
    chunk_size: int = 32
    vote: Literal["count", "reciprocal"] = "count"
    top: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        if not 0 < self.top <= 1:
            raise ConfigError(f"top must be above 0 and at most 1, not {self.top}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        xp, tokens = array_module(weights), weights.shape[-1]
        means = chunk_means(weights, self.chunk_size)
        rank = xp.argsort(xp.argsort(-means, axis=-1), axis=-1)
        if self.vote == "count":
            votes = (rank < max(1, int(self.top * means.shape[-1]))).astype(np.float32)
        else:
            votes = (1 / (RANK_OFFSET + 1 + rank)).astype(np.float32)
        spread: Floats = xp.repeat(votes, self.chunk_size, axis=-1)[..., :tokens]
        return spread
