"""Scorers: from a prompt to an importance per token. The registry imports a scorer's file when its name is used."""

from sp.scoring.base import (
    SCORERS,
    Importance,
    ModelFreeScorer,
    PrefixKeys,
    Scorer,
    ScoreRequest,
    chunk_means,
    register_scorer,
)

__all__ = [
    "SCORERS", "Importance", "ModelFreeScorer", "PrefixKeys", "ScoreRequest", "Scorer", "chunk_means",
    "register_scorer",
]  # fmt: skip
