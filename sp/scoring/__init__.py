"""Scorers: from a prompt to an importance per token. Import this package to have them all registered."""

from sp.scoring import bm25, controls, embedding, lexical, self_information
from sp.scoring.attention import (
    anchored,
    entropy_weight,
    gemfilter,
    head_vote,
    layer_subset,
    lookahead,
    mid_layer,
    retrieval_heads,
    sink_masked,
    snapkv,
    tail,
    target_attention,
)
from sp.scoring.base import SCORERS, Importance, Scorer, ScoreRequest, chunk_means, register_scorer

__all__ = [
    "SCORERS",
    "Importance",
    "ScoreRequest",
    "Scorer",
    "anchored",
    "bm25",
    "chunk_means",
    "controls",
    "embedding",
    "entropy_weight",
    "gemfilter",
    "head_vote",
    "layer_subset",
    "lexical",
    "lookahead",
    "mid_layer",
    "register_scorer",
    "retrieval_heads",
    "self_information",
    "sink_masked",
    "snapkv",
    "tail",
    "target_attention",
]
