"""Selectors: from importances to the tokens to keep. The registry imports their modules on first use of a name."""

from sp.selection.base import (
    SELECTORS,
    ByteRanges,
    Selection,
    SelectionRequest,
    Selector,
    check_keep_ratio,
    register_selector,
    token_budget,
)
from sp.selection.ranking import Constrained

__all__ = [
    "SELECTORS", "ByteRanges", "Constrained", "Selection", "SelectionRequest", "Selector", "check_keep_ratio",
    "register_selector", "token_budget",
]  # fmt: skip
