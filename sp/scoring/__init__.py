"""Scorers: from a prompt to an importance per token. Import this package to have them all registered."""

from sp.scoring import controls, lookahead, tail
from sp.scoring.base import SCORERS, Importance, Scorer, ScoreRequest, chunk_means, register_scorer

__all__ = [
    "SCORERS",
    "Importance",
    "ScoreRequest",
    "Scorer",
    "chunk_means",
    "controls",
    "lookahead",
    "register_scorer",
    "tail",
]
