"""Slots: what stands where in the target's cache, and what it takes to bring a cache from one list to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Bytes, Ints

PART = -2
"""In place of a token of the transcript: this one continues what is read of a token before, of which only a part is."""


@dataclass(frozen=True)
class Slots:
    """Tokens in the order they are cached.

    A token of the transcript stands at its own place. One of an excerpt stands before the token at its place; in the
    transcript it is the token at `source`, or none.

    Parameters
    ----------
    ids, positions : int64 (m,)
        Token, and where RoPE puts it.
    place : int64 (m,)
        Ascending: what of the transcript comes before a slot are the tokens below its place.
    source : int64 (m,)
        Which token of the transcript it is, perhaps a part of it; -1 for none, or `PART`.
    """

    ids: Ints
    positions: Ints
    place: Ints
    source: Ints

    @classmethod
    def none(cls) -> Slots:
        """No tokens."""
        return cls(*(np.empty(0, np.int64) for _ in range(4)))

    @classmethod
    def of(cls, transcript: Ints, index: Ints, offset: int = 0, source: Ints | None = None) -> Slots:
        """Tokens of a transcript at their own places, their positions `offset` further on."""
        return cls(transcript[index], index + offset, index, index if source is None else source[index])

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Slots) -> Slots:
        pairs = zip(self._columns, other._columns, strict=True)
        return Slots(*(np.concatenate(pair) for pair in pairs))

    def first(self, count: int) -> Slots:
        """The first `count` of them."""
        return Slots(*(column[:count] for column in self._columns))

    def before(self, place: int) -> int:
        """How many stand before a place of the transcript.

        Examples
        --------
        >>> slots = Slots.of(np.arange(9), np.array([0, 1, 5]))
        >>> slots.before(1), slots.before(2), slots.before(5), slots.before(9)
        (1, 2, 2, 3)
        """
        return int(np.searchsorted(self.place, place))

    def in_place(self, tokens: int) -> Bools:
        """Which of a transcript's first `tokens` tokens stand at their own places, (tokens,)."""
        return self._mask(self.source[self.source == self.place], tokens)

    def present(self, tokens: int) -> Bools:
        """Which of them stand anywhere, excerpts included, (tokens,)."""
        return self._mask(self.source[self.source >= 0], tokens)

    @property
    def end(self) -> int:
        """The position behind the last of them."""
        return int(self.positions[-1]) + 1 if len(self) else 0

    @property
    def excerpts(self) -> Bools:
        """Which of them belong to excerpts, (m,)."""
        found: Bools = (self.source != self.place) & (self.source != PART)
        return found

    @property
    def offset(self) -> int:
        """By how much positions run ahead of places behind the last slot: the length of all excerpts."""
        return int(self.excerpts.sum())

    @property
    def _columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.ids, self.positions, self.place, self.source

    @staticmethod
    def _mask(index: Ints, tokens: int) -> Bools:
        mask = np.zeros(tokens, bool)
        mask[index[index < tokens]] = True
        return mask


def same_start(one: Ints | Bytes, other: Ints | Bytes) -> int:
    """Length of the longest prefix that two lists of tokens, or two texts, share.

    Examples
    --------
    >>> same_start(np.array([1, 2, 3]), np.array([1, 2, 4, 5])), same_start(np.array([1]), np.array([1, 2]))
    (2, 1)
    """
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
