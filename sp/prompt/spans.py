"""Named byte ranges of a text, units of its tokens, and transfer of scores between tokenisations.

Ranges are in bytes of the UTF-8 text, the unit that two vocabularies share.
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
    """A named byte range `[start, end)` of the prompt."""

    kind: SpanKind
    start: int
    end: int


def in_bytes(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Convert spans of characters to spans of bytes."""
    if text.isascii():
        yield from spans
        return
    places, last, size = {0: 0}, 0, 0  # byte offset by character offset
    for place in sorted({edge for span in spans for edge in (span.start, span.end)}):
        size += len(text[last:place].encode())
        places[place] = size
        last = place
    yield from (Span(span.kind, places[span.start], places[span.end]) for span in spans)


def character_starts(raw: bytes, spans: Ints) -> Ints | None:
    """Return the first of the tokens that share a character, for each token (n,); None if no token splits one.

    A token with parts of two characters links the tokens of both.

    `spans` array (n, 2): byte range of each token, in order.

    >>> character_starts("a€b".encode(), np.array([[0, 1], [1, 2], [2, 4], [4, 5]])).tolist()
    [0, 1, 1, 3]
    >>> character_starts(b"ab", np.array([[0, 1], [1, 2]])) is None
    True
    """
    if raw.isascii():
        return None
    text = np.frombuffer(raw + b"\n", np.uint8)  # the byte added is read for an empty token at the end
    # 10xxxxxx is a UTF-8 continuation byte; a token that begins with one continues the character before.
    begins = (text[np.minimum(spans[:, 0], len(text) - 1)] & 0xC0) != 0x80
    if begins.all():
        return None
    firsts: Ints = np.maximum.accumulate(np.where(begins, np.arange(len(spans)), 0))
    return firsts


def with_characters(mask: Bools, starts: Ints | None) -> Bools:
    """Widen a mask of tokens (n,) to whole characters; `starts` from `character_starts`.

    >>> with_characters(np.array([False, True, False, False]), np.array([0, 1, 1, 3])).tolist()
    [False, True, True, False]
    """
    if starts is None:
        return mask
    hit = np.zeros(len(mask), bool)
    hit[starts[mask]] = True  # first tokens of the characters touched
    return hit[starts]


@dataclass(frozen=True)
class Transfer:
    """The map of token scores from one tokenisation of a text to another; see `transfer_scores`.

    Computed from the texts alone, so that it is ready before the scores are.

    Attributes
    ----------
    sources : bool array (n,) or None
        Source tokens whose scores are used; None for all.
    first : int array (m,) or None
        Index among those of the token at the first byte of each target token; None where both tokenisations are equal.
    wide : int array (w,)
        Target tokens that cover more than one source token.
    ends : int array (2 w,)
        The first source token of each of these, and the one behind the last, alternating.
    """

    sources: Bools | None
    first: Any
    wide: Any
    ends: Any

    @classmethod
    def between(cls, source: Ints, target: Ints) -> Transfer:
        """Return the map between byte ranges as in `transfer_scores`."""
        none, nonempty = np.empty(0, np.int64), source[:, 0] < source[:, 1]
        if nonempty.all() and np.array_equal(source, target):
            return cls(None, None, none, none)
        some = None if nonempty.all() else nonempty
        source = source if some is None else source[some]
        owner = np.repeat(
            np.arange(len(source), dtype=np.int32), source[:, 1] - source[:, 0]
        )  # source token of each byte
        begins = np.minimum(target[:, 0], len(owner) - 1)  # first byte of each target token
        first, last = owner[begins], owner[np.maximum(target[:, 1] - 1, begins)]
        wide = np.flatnonzero(last > first)  # few, because most vocabularies agree on word boundaries
        return cls(some, first, wide, np.stack([first[wide], last[wide] + 1], axis=1).ravel())

    def __call__(self, scores: Floats) -> Floats:
        """Map scores of the source tokens (n,) to scores of the target tokens (m,)."""
        if self.sources is not None:
            scores = scores[self.sources]
        if self.first is None:
            return scores.astype(np.float32)
        result: Floats = scores[self.first].astype(np.float32)
        if len(self.wide):
            # reduceat takes the maximum over [first, last); a sentinel makes an end index of n legal.
            padded = np.append(scores, -np.inf).astype(np.float32)
            result[self.wide] = np.maximum.reduceat(padded, self.ends)[::2]
        return result


def transfer_scores(scores: Floats, source: Ints, target: Ints) -> Floats:
    """Transfer token scores from one tokenisation of a text to another.

    A target token takes the highest score among the source tokens it shares a byte with, so an important
    source token marks every target token that covers a part of it.

    Parameters
    ----------
    scores : array (n,)
        Score of each source token.
    source : array (n, 2)
        Byte ranges of the source tokens; they tile the text, which is not empty. Scores of empty ranges are ignored.
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
    """Join byte ranges (n, 2), sorted by start, that touch or overlap; returns shape (m, 2)."""
    if len(spans) == 0:
        return spans.reshape(0, 2)
    # A range starts a new group if it begins after the end of all ranges before it.
    firsts = np.append(0, np.flatnonzero(spans[1:, 0] > np.maximum.accumulate(spans[:, 1])[:-1]) + 1)
    return np.stack([spans[firsts, 0], np.maximum.reduceat(spans[:, 1], firsts)], 1).astype(np.int64)


CLOSERS = "(?:[\"')\\]]|”|’|»|」|』|）)*"
_FIRST = b"[.!?\n\xe2\xe3\xef]"  # every sentence end begins with one of these bytes, to which `re` skips quickly
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
    """Return bounds (sentences + 1,) in tokens of sentences; those of more than `longest` tokens are split evenly.

    A token that reaches over the end of a sentence belongs to the sentence it begins in. `spans` array (n, 2): byte
    range of each token in `text`.
    """
    ends = np.array([match.end() for match in SENTENCE_END.finditer(text)], np.int64)
    cuts = np.searchsorted(spans[:, 0], ends, side="left")
    return cut_long(np.unique(np.concatenate([[0], cuts, [len(spans)]])), longest)


def cut_long(bounds: Ints, longest: int) -> Ints:
    """Split ranges of more than `longest` tokens into parts that differ by one token at most; returns new bounds.

    >>> cut_long(np.array([0, 2, 7]), 2).tolist()
    [0, 2, 3, 5, 7]
    """
    lengths = np.diff(bounds)
    parts = -(-lengths // longest)  # number of parts of each range, rounded up
    first = np.cumsum(parts) - parts
    part = np.arange(parts.sum()) - np.repeat(first, parts)
    starts = np.repeat(bounds[:-1], parts) + part * np.repeat(lengths, parts) // np.repeat(parts, parts)
    return np.append(starts, bounds[-1])


def chunk_bounds(tokens: int, size: int) -> Ints:
    """Return bounds of chunks of `size` tokens; the last may be shorter."""
    return np.append(np.arange(0, tokens, size), tokens)


def without(segments: Sequence[Segment], excluded: Sequence[tuple[int, int]]) -> Iterator[Segment]:
    """Yield the parts of segments outside of the ranges `excluded`; both in order, in bytes."""
    number = 0
    for segment in segments:
        position = segment.start
        while number < len(excluded) and excluded[number][0] < segment.end:
            start, end = excluded[number]
            if position < start:
                yield replace(segment, start=position, end=start)
            position = max(position, end)
            if end > segment.end:
                break  # this range continues into the next segment
            number += 1
        if position < segment.end:
            yield replace(segment, start=position)


def same_start(first: Ints | Bytes, second: Ints | Bytes) -> int:
    """Return the length of the longest common prefix of two arrays of tokens or bytes."""
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size
