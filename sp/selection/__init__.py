"""Selectors: from importances to the tokens to keep. The registry imports their files when a name is asked for."""

from sp.selection.base import (
    SELECTORS,
    Reading,
    Selection,
    SelectionRequest,
    Selector,
    check_keep_ratio,
    register_selector,
    token_budget,
)
from sp.selection.ranking import Constrained

__all__ = [
    "SELECTORS", "Constrained", "Reading", "Selection", "SelectionRequest", "Selector", "check_keep_ratio",
    "register_selector", "token_budget",
]  # fmt: skip
