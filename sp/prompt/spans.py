"""Named byte ranges of a text, units of its tokens, and scores carried from one tokenizer's to another's.

They are ranges of the UTF-8 text because bytes are what two vocabularies have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sp.arrays import Bools, Bytes, Floats, Ints
from sp.chat.located import Segment

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


def character_starts(raw: bytes, spans: Ints) -> Ints | None:
    """The first of the tokens that hold parts of the same characters, for each token; None where none holds a part.

    A token that holds parts of two characters makes one of all that hold the rest of either.

    `spans` array (n, 2): byte range of each token, in order.

    >>> character_starts("a\u20acb".encode(), np.array([[0, 1], [1, 2], [2, 4], [4, 5]])).tolist()
    [0, 1, 1, 3]
    >>> character_starts(b"ab", np.array([[0, 1], [1, 2]])) is None
    True
    """
    if raw.isascii():
        return None
    text = np.frombuffer(raw + b"\n", np.uint8)
    begins = (text[np.minimum(spans[:, 0], len(text) - 1)] & 0xC0) != 0x80
    if begins.all():
        return None
    found: Ints = np.maximum.accumulate(np.where(begins, np.arange(len(spans)), 0))
    return found


def with_characters(mask: Bools, starts: Ints | None) -> Bools:
    """A mask of tokens (n,) that has all of each character of which it has a part; `starts` of `character_starts`.

    >>> with_characters(np.array([False, True, False, False]), np.array([0, 1, 1, 3])).tolist()
    [False, True, True, False]
    """
    if starts is None:
        return mask
    hit = np.zeros(len(mask), bool)
    hit[starts[mask]] = True
    return hit[starts]


@dataclass(frozen=True)
class Transfer:
    """How token scores go from one tokenisation of a text to another; see `transfer_scores`.

    What takes the time is known before any score is.

    Attributes
    ----------
    shown : bool array (n,) or None
        Source tokens that give their score, if not all do.
    first : int array (m,) or None
        Of those, the one at the first byte of each target token; None where both tokenisations are the same.
    wide : int array (w,)
        Target tokens that cover more than one.
    ends : int array (2 w,)
        The first of these, and the one behind the last, in turn.
    """

    shown: Bools | None
    first: Any
    wide: Any
    ends: Any

    @classmethod
    def between(cls, source: Ints, target: Ints) -> Transfer:
        """Of byte ranges as `transfer_scores` takes them."""
        none, shown = np.empty(0, np.int64), source[:, 0] < source[:, 1]
        if shown.all() and np.array_equal(source, target):
            return cls(None, None, none, none)
        some = None if shown.all() else shown
        source = source if some is None else source[some]
        owner = np.repeat(np.arange(len(source), dtype=np.int32), source[:, 1] - source[:, 0])  # of each byte
        begins = np.minimum(target[:, 0], len(owner) - 1)
        first, last = owner[begins], owner[np.maximum(target[:, 1] - 1, begins)]
        wide = np.flatnonzero(last > first)  # few of them: vocabularies mostly cut alike
        return cls(some, first, wide, np.stack([first[wide], last[wide] + 1], axis=1).ravel())

    def __call__(self, scores: Floats) -> Floats:
        """Scores of the source tokens (n,) -> of the target tokens (m,)."""
        if self.shown is not None:
            scores = scores[self.shown]
        if self.first is None:
            return scores.astype(np.float32)
        found: Floats = scores[self.first].astype(np.float32)
        if len(self.wide):
            # reduceat takes the maximum over [first, last); a sentinel makes an end index of n legal.
            padded = np.append(scores, -np.inf).astype(np.float32)
            found[self.wide] = np.maximum.reduceat(padded, self.ends)[::2]
        return found


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
    return Transfer.between(source, target)(scores)


def merge_spans(spans: Ints) -> Ints:
    """Join byte ranges (n, 2), sorted by start, that touch or overlap; shape (m, 2)."""
    if len(spans) == 0:
        return spans.reshape(0, 2)
    breaks = np.flatnonzero(spans[1:, 0] > np.maximum.accumulate(spans[:, 1])[:-1]) + 1
    groups = np.split(spans, breaks)
    return np.array([[group[0, 0], group[:, 1].max()] for group in groups], np.int64)


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
    """Bounds (sentences + 1,) in tokens of sentences; those of more than `longest` tokens are cut into equal parts. A
    token that reaches over the end of a sentence belongs to the sentence it begins in. `spans` array (n, 2): byte range
    of each token in it.
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


def without(segments: Sequence[Segment], taken: Sequence[tuple[int, int]]) -> Iterator[Segment]:
    """The parts of segments that lie in none of the ranges `taken`; both in order, by bytes."""
    number = 0
    for segment in segments:
        at = segment.start
        while number < len(taken) and taken[number][0] < segment.end:
            start, end = taken[number]
            if at < start:
                yield replace(segment, start=at, end=start)
            at = max(at, end)
            if end > segment.end:
                break
            number += 1
        if at < segment.end:
            yield replace(segment, start=at)


def same_start(one: Ints | Bytes, other: Ints | Bytes) -> int:
    """Length of the longest prefix that two lists of tokens, or two texts, share."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
