"""Named byte ranges of a text, and the mapping of token scores between two tokenizers by them.

They are ranges of the UTF-8 text because bytes are what two vocabularies have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints

SpanKind = Literal["protected", "question", "answer", "needle", "plain"]


@dataclass(frozen=True)
class Span:
    """Bytes `[start, end)` of the prompt that mean something to selection or to the report."""

    kind: SpanKind
    start: int
    end: int


def in_bytes(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Spans of characters as spans of bytes."""
    if text.isascii():
        yield from spans
        return
    places, at, size = {0: 0}, 0, 0
    for place in sorted({edge for span in spans for edge in (span.start, span.end)}):
        size += len(text[at:place].encode())
        places[place] = size
        at = place
    yield from (Span(span.kind, places[span.start], places[span.end]) for span in spans)


def transfer_scores(scores: Floats, source: Ints, target: Ints) -> Floats:
    """Carry token scores from one tokenisation of a text to another.

    A target token takes the highest score among the source tokens it shares a byte with, so an important
    source token marks every target token that covers a part of it.

    Parameters
    ----------
    scores : array (n,)
        Score of each source token.
    source : array (n, 2)
        Byte ranges of the source tokens; they tile the text, which is not empty. Empty ones give nothing.
    target : array (m, 2)
        Byte ranges of the target tokens of the same text; an empty one takes the score of the byte behind it.

    Returns
    -------
    array (m,)

    Examples
    --------
    >>> source = np.array([[0, 2], [2, 4]])
    >>> transfer_scores(np.array([1, 5], np.float32), source, np.array([[0, 1], [1, 3], [3, 4]])).tolist()
    [1.0, 5.0, 5.0]
    """
    shown = source[:, 0] < source[:, 1]
    if not shown.all():
        scores, source = scores[shown], source[shown]
    elif np.array_equal(source, target):
        return scores.astype(np.float32)
    owner = np.repeat(np.arange(len(source), dtype=np.int32), source[:, 1] - source[:, 0])  # of each byte
    begins = np.minimum(target[:, 0], len(owner) - 1)
    first, last = owner[begins], owner[np.maximum(target[:, 1] - 1, begins)]
    found = scores[first].astype(np.float32)
    wide = np.flatnonzero(last > first)  # few of them: vocabularies mostly cut alike
    if len(wide):
        # reduceat takes the maximum over [first, last); a sentinel makes an end index of n legal.
        padded = np.append(scores, -np.inf).astype(np.float32)
        ends = np.stack([first[wide], last[wide] + 1], axis=1).ravel()
        found[wide] = np.maximum.reduceat(padded, ends)[::2]
    return found


def merge_spans(spans: Ints) -> Ints:
    """Join byte ranges (n, 2), sorted by start, that touch or overlap; shape (m, 2)."""
    if len(spans) == 0:
        return spans.reshape(0, 2)
    breaks = np.flatnonzero(spans[1:, 0] > np.maximum.accumulate(spans[:, 1])[:-1]) + 1
    groups = np.split(spans, breaks)
    return np.array([[group[0, 0], group[:, 1].max()] for group in groups], np.int64)
