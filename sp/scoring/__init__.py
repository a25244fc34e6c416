"""Scorers: from a prompt to an importance per token, one file each. Importing this package registers them all."""

from sp.config import import_modules
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
    "SCORERS",
    "Importance",
    "KeptKeys",
    "ModelFreeScorer",
    "ScoreRequest",
    "Scorer",
    "chunk_means",
    "register_scorer",
]

import_modules(__name__)
