"""Which runs of words a question shares with a needle, besides the key it has to name.

A question that repeats its needle's words is answered by matching strings; then nothing is learned about a drafter.
"""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+")
KEY = "\0"
"""Stands for the whole key, so that a run may hold it but its parts are no words of their own."""


def words(text: str, key: str) -> list[str]:
    """Lower-case words of a text, every occurrence of the key one symbol.

    Examples
    --------
    >>> words("The code for Red-Fox, now.", "red-fox")
    ['the', 'code', 'for', '\\x00', 'now']
    """
    pieces = re.split(re.escape(key.lower()), text.lower()) if key else [text.lower()]
    found: list[str] = []
    for number, piece in enumerate(pieces):
        found += [KEY] if number else []
        found += WORD.findall(piece)
    return found


def shared_ngrams(question: str, needle: str, key: str, n: int) -> set[tuple[str, ...]]:
    """Runs of `n` words that stand in both texts, the key counting as one word; the key alone is no such run.

    Parameters
    ----------
    question, needle : str
    key : str
        What both have to name.
    n : int
        At least 1. Texts that share no run of n words share no longer one.

    Examples
    --------
    >>> sorted(shared_ngrams("What is the code for red-fox?", "The code for red-fox is 7.", "red-fox", 3))
    [('code', 'for', '\\x00'), ('the', 'code', 'for')]
    >>> shared_ngrams("Which digits go with red-fox?", "The code for red-fox is 7.", "red-fox", 1)
    set()
    """
    asked, said = (
        {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}
        for found in (words(question, key), words(needle, key))
    )
    return (asked & said) - {(KEY,)}
