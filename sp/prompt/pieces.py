"""A tokenised prompt in pieces: what was kept of it, what was left out, its question and its needle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sp.arrays import Bools, Ints
from sp.prompt.prompt import TokenisedPrompt

KINDS = ("dropped", "kept", "question", "needle", "lost needle")
"""Of the question and of the needle only what was kept, but of a lost needle."""


def kinds(prompt: TokenisedPrompt, kept: Bools | None) -> Ints:
    """Number in `KINDS` of each token, (n,); `kept` (n,) is None where all were."""
    needle, question = prompt.mask("needle"), prompt.mask("question")
    kept = np.ones(len(prompt), bool) if kept is None else kept
    found: Ints = np.where(kept, np.where(needle, 3, np.where(question, 2, 1)), np.where(needle, 4, 0))
    return found


def edges(values: Ints) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of equal neighbours, in order."""
    inner = (np.flatnonzero(np.diff(values)) + 1).tolist()
    if len(values):
        yield from zip([0, *inner], [*inner, len(values)], strict=True)


def text_of(raw: bytes, spans: Ints, start: int, end: int) -> str:
    """Text of tokens [start, end), whose bytes in `raw` are `spans`; those cut off from a character become U+FFFD."""
    return raw[spans[start, 0] : spans[end - 1, 1]].decode(errors="replace")
