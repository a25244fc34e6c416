"""A grammar of moves, of what is taken, put down and handed on, and of questions for where and who."""

from __future__ import annotations

from sp.evals.text.tables import table

from .grammar import Grammar

TABLES = table(__file__)

RULES = TABLES["RULES"]
GRAMMAR = Grammar(RULES)
FIELDS = TABLES["FIELDS"]
MANY = {field: 30 if field.startswith("asks") else 16 for field in FIELDS}
"""Frames of each field that a dialect draws from."""
