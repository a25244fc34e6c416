"""Scorers: from a prompt to an importance per token. The registry imports their files when a name is asked for."""

from sp.scoring.base import (
    SCORERS,
    Importance,
    KeptKeys,
    ModelFreeScorer,
    Scorer,
    ScoreRequest,
    chunk_means,
    register_scorer,
)

__all__ = [
    "SCORERS", "Importance", "KeptKeys", "ModelFreeScorer", "ScoreRequest", "Scorer", "chunk_means",
    "register_scorer",
]  # fmt: skip
