"""Where sentences end, in bytes of a text and in its tokens."""

from __future__ import annotations

import re

import numpy as np

from sp.arrays import Ints

CLOSERS = "(?:[\"')\\]]|”|’|»|」|』|）)*"
_FIRST = b"[.!?\n\xe2\xe3\xef]"  # one set of bytes that every end begins with: `re` skips to those quickly
SENTENCE_END = re.compile(
    _FIRST
    + rb"(?:"
    + rf"(?:(?<=[.!?])|(?<=\xe2)\x80\xa6)(?:[.!?]|…)*{CLOSERS}(?:\s*\n\s*|(?=\s))".encode()
    + rf"|(?:(?<=\xe3)\x80\x82|(?<=\xef)\xbc[\x81\x9f])(?:。|！|？)*{CLOSERS}\s*|(?<=\n)\s*".encode()
    + rb")"
)
"""A stop before white space, a full-width stop, or a line break. White space with a line break in it ends the old
sentence; a space begins the new one, as it does in the tokens of byte-pair vocabularies. A stop inside a number or
a name is no end, since no space follows it."""


def sentence_bounds(text: bytes, spans: Ints, longest: int) -> Ints:
    """Bounds (sentences + 1,) in tokens of sentences; those of more than `longest` tokens are cut into equal parts.

    A token that reaches over the end of a sentence belongs to the sentence it begins in.

    `spans` array (n, 2): byte range of each token in it.
    """
    ends = np.array([match.end() for match in SENTENCE_END.finditer(text)], np.int64)
    cuts = np.searchsorted(spans[:, 0], ends, side="left")
    return cut_long(np.unique(np.concatenate([[0], cuts, [len(spans)]])), longest)


def cut_long(bounds: Ints, longest: int) -> Ints:
    """The same bounds with ranges of more than `longest` tokens cut into parts that differ by one token at most.

    >>> cut_long(np.array([0, 2, 7]), 2).tolist()
    [0, 2, 3, 5, 7]
    """
    lengths = np.diff(bounds)
    parts = -(-lengths // longest)
    first = np.cumsum(parts) - parts
    part = np.arange(parts.sum()) - np.repeat(first, parts)
    starts = np.repeat(bounds[:-1], parts) + part * np.repeat(lengths, parts) // np.repeat(parts, parts)
    return np.append(starts, bounds[-1])


def chunk_bounds(tokens: int, size: int) -> Ints:
    """Bounds of chunks of `size` tokens; the last may be shorter."""
    return np.append(np.arange(0, tokens, size), tokens)
