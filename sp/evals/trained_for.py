"""What the embedded drafter was trained for, told under every table in which scorers are ranked by it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from filecmp import cmp
from functools import cache
from pathlib import Path

from sp.pipeline import embedded

TRAINED_FOR = (
    "What was trained for what: heads 0 and 2 of the embedded drafter's last layer were supervised on the very queries "
    "that `tail` reads, the last tokens of a prompt, and on the answer's tokens, which `lookahead` adds; scorers that "
    "read other queries, other layers or no model had no such help."
)
"""The pointer loss of ``sp/assets/MODEL_CARD.md``; its rows are `tail` in ``experiments/needle_pair/configs``."""


def note_of_file(drafter: Path) -> str:
    """What is told of a ranking by the drafter in a file: nothing, unless it is the embedded one."""
    ours = embedded("drafter")
    same = drafter.exists() and drafter.stat().st_size == ours.stat().st_size and cmp(drafter, ours, shallow=False)
    return TRAINED_FOR if same else ""


def note_of_hashes(drafters: Collection[str]) -> str:
    """The same of rankings by drafters whose SHA-256 are known; where none is, the sentence says so itself.

    Examples
    --------
    >>> note_of_hashes(["0" * 64])
    ''
    >>> note_of_hashes([])[:41]
    'If the drafter was the embedded one: What'
    """
    if not drafters:
        return f"If the drafter was the embedded one: {TRAINED_FOR}"
    return TRAINED_FOR if _embedded_sha256() in drafters else ""


@cache
def _embedded_sha256() -> str:
    return hashlib.sha256(embedded("drafter").read_bytes()).hexdigest()
