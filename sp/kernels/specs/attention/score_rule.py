"""Defines for the score rules of some model families; see ``score_rule.cuh``."""

from __future__ import annotations

WINDOW, SINKS, SOFTCAP = {"WINDOW": 1}, {"SINKS": 1}, {"SOFTCAP": 1}
RULES = (
    (64, WINDOW | SINKS), (64, SINKS), (128, WINDOW), (128, WINDOW | SOFTCAP), (128, SOFTCAP), (256, WINDOW),
    (256, WINDOW | SOFTCAP), (256, SOFTCAP),
)  # fmt: skip
"""Head sizes of model families, and the defines of their layers; missing ones are 0."""
