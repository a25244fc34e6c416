"""What a rule compares: tokens, chunks of equal length, or sentences; always ranges that tile the prompt."""

from __future__ import annotations

import re

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import ConfigError
from sp.selection.base import SelectionRequest

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


def chunk_bounds(tokens: int, size: int) -> Ints:
    """Bounds of chunks of `size` tokens; the last may be shorter.

    Examples
    --------
    >>> chunk_bounds(5, 2).tolist()
    [0, 2, 4, 5]
    """
    return np.append(np.arange(0, tokens, size), tokens)


def sentence_bounds(request: SelectionRequest, longest: int) -> Ints:
    """Bounds of sentences in tokens; those of more than `longest` tokens are cut into equal parts.

    A token that reaches over the end of a sentence belongs to the sentence it begins in.

    Examples
    --------
    >>> spans = np.array([[0, 3], [3, 4], [4, 8], [8, 9]])
    >>> request = SelectionRequest(np.zeros(4, np.float32), np.zeros(4, bool), 0.5, b"One. Two.", spans)
    >>> sentence_bounds(request, 64).tolist()
    [0, 2, 4]
    """
    if request.spans is None:
        raise ConfigError("selector sentence needs the text of the prompt and the bytes of its tokens")
    n = len(request.scores)
    ends = np.array([match.end() for match in SENTENCE_END.finditer(request.text)], np.int64)
    cuts = np.searchsorted(request.spans[:, 0], ends, side="left")
    bounds = np.unique(np.concatenate([[0], cuts, [n]]))
    parts = -(-np.diff(bounds) // longest)
    if (parts > 1).any():
        part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        inner = np.repeat(bounds[:-1], parts) + part * np.repeat(np.diff(bounds), parts) // np.repeat(parts, parts)
        bounds = np.append(inner, n)
    return bounds


def unit_means(scores: Floats, bounds: Ints, counted: Bools | None = None) -> Floats:
    """Mean score of each unit over its `counted` tokens (all, if left out); NaN where none counts.

    Examples
    --------
    >>> unit_means(np.array([1, 3, 5], np.float32), np.array([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    if counted is None:
        counted = np.ones(len(scores), bool)
    sums = np.add.reduceat(np.where(counted, scores, np.float32(0)), bounds[:-1])
    counts = np.add.reduceat(counted.astype(np.int64), bounds[:-1])
    means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(means, np.float32)


def best_first(scores: Floats) -> Ints:
    """Units that were compared, by falling score; earlier ones first among equals.

    Examples
    --------
    >>> best_first(np.array([1, np.nan, 3, 1], np.float32)).tolist()
    [2, 0, 3]
    """
    order = np.argsort(-scores, kind="stable")
    return order[~np.isnan(scores[order])]
