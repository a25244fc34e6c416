"""A grammar of pieces of writing: how they are announced and closed, and questions for one of them by its order."""

from __future__ import annotations

from sp.evals.text.tables import table

from .grammar import Grammar

TABLES = table(__file__)

RULES = TABLES["RULES"]
GRAMMAR = Grammar(RULES)
ONLY = Grammar(RULES | {"it": ["<only> <on> {topic}", "<only> <on> {topic}", "<only> with the subject {topic}"]})
FINAL = Grammar(RULES | {"it": ["<final>"]})
FIELDS = {"headers": "header", "closings": "close", "asks": "asks"}
MANY = {"headers": 24, "closings": 24, "asks": 60}
"""Frames of each field that a dialect draws from."""
