"""Selectors: from importances to the tokens to keep. Import this package to have them all registered."""

from sp.selection import adaptive, alpha, fixed_budget, sentence, top_chunks, top_p, top_tokens, zscore
from sp.selection.base import (
    SELECTORS,
    Selection,
    SelectionRequest,
    Selector,
    check_keep_ratio,
    register_selector,
    token_budget,
)
from sp.selection.constraints import Constrained, check_budget

__all__ = [
    "SELECTORS",
    "Constrained",
    "Selection",
    "SelectionRequest",
    "Selector",
    "adaptive",
    "alpha",
    "check_budget",
    "check_keep_ratio",
    "fixed_budget",
    "register_selector",
    "sentence",
    "token_budget",
    "top_chunks",
    "top_p",
    "top_tokens",
    "zscore",
]
