"""A grammar of pieces of writing: how they are announced and closed, and questions for one of them by its order."""

from __future__ import annotations

from .grammar import Grammar
from .tables import table

TABLES = table(__name__)

RULES = TABLES["RULES"]
GRAMMAR = Grammar(RULES)
ONLY = Grammar(RULES | {"it": ["<only> <on> {topic}", "<only> <on> {topic}", "<only> with the subject {topic}"]})
FINAL = Grammar(RULES | {"it": ["<final>"]})
FIELDS = {"headers": "header", "closings": "close", "asks": "asks"}
MANY = {"headers": 24, "closings": 24, "asks": 60}
"""Frames of each field that a dialect draws from."""
