"""Selectors: from importances to the tokens to keep, one file each. Importing this package registers them all."""

from sp.config import import_modules
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
    "SELECTORS",
    "Constrained",
    "Reading",
    "Selection",
    "SelectionRequest",
    "Selector",
    "check_keep_ratio",
    "register_selector",
    "token_budget",
]

import_modules(__name__)
