"""Documents of an exact length with needles at exact depths.

Text grows sentence by sentence and only sentences are counted, each with the white space it stands in, so that a
document of 128K tokens costs one pass. Tokenizers split between words, so the counts add up; one count of the whole
confirms it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sp.errors import ConfigError
from sp.evals.base import Count
from sp.evals.text.filler import Sentence

JITTER = 64
"""Tokens over which a needle is moved at random, so that it lies anywhere in a block of 32 or 64."""
ATTEMPTS = 48
"""Sentences tried for the last few tokens."""


@dataclass(frozen=True)
class Document:
    """A text with its needles.

    `starts`: Token at which each needle begins.
    """

    text: str
    tokens: int
    starts: tuple[int, ...]

    @property
    def depths(self) -> tuple[float, ...]:
        """Where the needles stand, from 0 (begins the text) to 1 (ends it)."""
        return tuple(round(start / max(1, self.tokens), 4) for start in self.starts)


@dataclass(frozen=True)
class Piece:
    """Text as it stands in the document, white space included, and its tokens."""

    text: str
    tokens: int


def haystack(
    sentences: Iterable[Sentence],
    needles: Sequence[str],
    depths: Sequence[float],
    room: int,
    count: Count,
    rng: random.Random,
    *,
    header: str = "",
) -> Document:
    """Fill `room` tokens with sentences and put the needles between them.

    `sentences`: filler, as long as is asked for; `depths`: of each needle, from 0 to 1; it lies within half of `JITTER`
    and a sentence of it; `room`: Tokens of the document; `count`: Tokens of a text; `header`: text before the filler;
    ends with a line feed where it is to stand alone.

    Raises
    ------
    ConfigError
        If the needles and the header alone exceed the room.

    Examples
    --------
    >>> from sp.evals.text.filler import filler
    >>> rng, words = random.Random(0), lambda text: len(text.split())
    >>> found = haystack(filler("grammar", rng), ["The code is 7."], [0.5], 200, words, rng)
    >>> found.text.count("The code is 7."), 190 <= words(found.text) <= 200
    (1, True)
    """
    given = sum(count(f" {needle}") for needle in needles) + len(needles) + (count(header) if header else 0)
    if given > room:
        raise ConfigError(f"the needles alone take {given} tokens, but the document has room for {room}; ask for more")
    pieces, seed = fill(sentences, room - given, count), rng.getrandbits(64)
    while True:
        document = place(pieces, needles, depths, count, random.Random(seed), header)
        excess = count(document.text) - room
        if excess <= 0 or not pieces:
            return document
        while pieces and excess > 0:
            excess -= pieces.pop().tokens


def fill(sentences: Iterable[Sentence], room: int, count: Count) -> list[Piece]:
    """Pieces of at most `room` tokens, in order; near the end, sentences that do not fit are passed over."""
    known: dict[str, int] = {}
    pieces: list[Piece] = []
    left, missed, line_start = room, 0, True
    for sentence in sentences:
        text = f"{'' if line_start else ' '}{sentence.text}{chr(10) if sentence.ends_line else ''}"
        if text not in known:
            known[text] = count(text)
        if known[text] <= left:
            pieces.append(Piece(text, known[text]))
            left -= known[text]
            line_start = sentence.ends_line
        else:
            missed += 1
        if missed >= ATTEMPTS or left < 4:
            break
    return pieces


def place(
    pieces: Sequence[Piece],
    needles: Sequence[str],
    depths: Sequence[float],
    count: Count,
    rng: random.Random,
    header: str = "",
) -> Document:
    """The pieces with every needle between two of them, in the order of their depths."""
    ends = np.cumsum([0, *(piece.tokens for piece in pieces)])  # (pieces + 1,): tokens before each gap
    wanted = [depth * ends[-1] + rng.uniform(-JITTER / 2, JITTER / 2) for depth in depths]
    gaps = sorted(int(np.abs(ends - one).argmin()) for one in wanted)
    starts = [0] * len(needles)
    parts, total, done = [header], count(header) if header else 0, 0
    for gap, number in zip(gaps, np.argsort(depths, kind="stable").tolist(), strict=True):
        parts += [piece.text for piece in islice(pieces, done, gap)]
        total += int(ends[gap] - ends[done])
        done = gap
        before = next((part for part in reversed(parts) if part), "\n")
        # On a line of its own where a line ended, else in the running text.
        text = f"{needles[number]}\n" if before.endswith("\n") else f" {needles[number]}"
        starts[number] = total
        parts.append(text)
        total += count(text)
    parts += [piece.text for piece in pieces[done:]]
    return Document("".join(parts).strip(), total + int(ends[-1] - ends[done]), tuple(starts))


def largest_fit(build: Callable[[int], str], room: int, count: Count, guess: int, *, least: int = 1) -> str:
    """The longest `build(size)` of at most `room` tokens, to within about 1 %, for text that does not grow by pieces.

    Raises
    ------
    ConfigError
        If even `build(least)` is longer.

    Examples
    --------
    >>> largest_fit(lambda size: "x " * size, 5, lambda text: len(text.split()), guess=2)
    'x x x x x '
    """
    size, low, high = max(least, guess), least - 1, 1 << 40
    best = ""
    for _ in range(24):
        text = build(size)
        used = count(text)
        if used <= room:
            low, best = size, text
        else:
            high = size
        if high - low <= 1 or 0 <= room - used <= room // 100:
            break
        size = min(max(int(size * room / max(used, 1)), low + 1), high - 1)
    if not best:
        raise ConfigError(f"the text takes more than the {room} tokens there are; ask for a longer prompt")
    return best
