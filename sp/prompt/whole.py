"""Tokens that begin inside a character, which can only be shown with the one before."""

from __future__ import annotations

import numpy as np

from sp.arrays import Ints
from sp.prompt.prompt import TokenisedPrompt


def whole_characters(prompt: TokenisedPrompt) -> Ints:
    """The token each is shown with, (n,): itself, but the one before where it begins inside a character of UTF-8.

    Examples
    --------
    >>> from sp.prompt import Prompt
    >>> spans = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> whole_characters(TokenisedPrompt(Prompt("a\u20ac"), np.arange(4), spans)).tolist()
    [0, 1, 1, 1]
    """
    raw = np.frombuffer(prompt.prompt.text.encode() + b"\n", np.uint8)
    begins = (raw[np.minimum(prompt.bytes[:, 0], len(raw) - 1)] & 0xC0) != 0x80
    found: Ints = np.maximum.accumulate(np.where(begins, np.arange(len(prompt)), 0))
    return found
