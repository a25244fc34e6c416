"""Defines of what layers of some families do with scores; see ``score_rule.cuh``."""

from __future__ import annotations

WINDOW, SINKS, SOFTCAP = {"WINDOW": 1}, {"SINKS": 1}, {"SOFTCAP": 1}
RULES = (
    (64, WINDOW | SINKS), (64, SINKS), (128, WINDOW), (128, WINDOW | SOFTCAP), (128, SOFTCAP), (256, WINDOW),
    (256, WINDOW | SOFTCAP), (256, SOFTCAP),
)  # fmt: skip
"""Head sizes of families, and what their layers ask for; what is left out is 0."""
