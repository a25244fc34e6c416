"""Selectors: from importances to the tokens to keep. Import this package to have them all registered."""

from sp.selection import top_chunks
from sp.selection.base import (
    SELECTORS,
    Selection,
    SelectionRequest,
    Selector,
    check_keep_ratio,
    register_selector,
    token_budget,
)
from sp.selection.constraints import check_budget

__all__ = [
    "SELECTORS",
    "Selection",
    "SelectionRequest",
    "Selector",
    "check_budget",
    "check_keep_ratio",
    "register_selector",
    "token_budget",
    "top_chunks",
]
