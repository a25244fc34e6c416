"""Tokens that hold a part of a character, which can only be shown, kept or left out with those that hold the rest."""

from __future__ import annotations

import numpy as np

from sp.arrays import Ints
from sp.prompt.prompt import TokenisedPrompt
from sp.prompt.spans import character_starts


def whole_characters(prompt: TokenisedPrompt) -> Ints:
    """The token each is shown with, (n,): itself, but the one before where it begins inside a character of UTF-8.

    >>> from sp.prompt import Prompt
    >>> spans = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> whole_characters(TokenisedPrompt(Prompt("a\u20ac"), np.arange(4), spans)).tolist()
    [0, 1, 1, 1]
    """
    found = character_starts(prompt.prompt.text.encode(), prompt.bytes)
    return np.arange(len(prompt)) if found is None else found
