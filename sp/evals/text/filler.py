"""Filler sentences, and documents of an exact length made of them, with needles at exact depths.

Text grows sentence by sentence and only sentences are counted, each with the white space before it, so that a document
of 128K tokens costs one pass. Tokenizers split between words, so the counts add up; one count of the whole confirms it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from sp.errors import ConfigError
from sp.evals.base import Count
from sp.evals.text.tables import ADJECTIVES, NAMES, NOUNS, SURNAMES, TOWNS, VERBS, table

TABLES = table(__file__)

Filler = Literal["grammar", "noise", "sample"]

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The filler of RULER's `noise` haystacks (arXiv 2404.06654)."""

PLACES: tuple[str, ...] = TABLES["places"]
TIMES: tuple[str, ...] = TABLES["times"]
TOPICS = (
    "archery", "pottery", "chess", "sailing", "baking", "carpentry", "surveying", "calligraphy", "fencing", "juggling",
    "masonry", "botany", "tailoring", "rowing", "bell ringing", "cheese making", "puppetry", "typesetting",
)  # fmt: skip
SENTENCES: tuple[str, ...] = TABLES["sentences"]


class Sentence(NamedTuple):
    """A sentence of filler."""

    text: str
    ends_line: bool  # True if a line feed follows


def filler(kind: Filler, rng: random.Random) -> Iterator[Sentence]:
    """Yield sentences of a kind of filler, without end, drawn by the generator."""
    if kind == "noise":
        while True:
            yield Sentence(NOISE, True)
    if kind == "sample":
        paragraphs = list(sample_paragraphs())
        while True:
            rng.shuffle(paragraphs)
            for paragraph in paragraphs:
                for number, sentence in enumerate(paragraph):
                    yield Sentence(sentence, number + 1 == len(paragraph))
    while True:
        for remaining in reversed(range(rng.randrange(2, 9))):
            yield Sentence(grammar_sentence(rng), remaining == 0)


def grammar_sentence(rng: random.Random) -> str:
    """Draw a sentence from a small grammar with more than 10^9 sentences."""
    choose = rng.choice
    numbers = {"year": rng.randrange(1500, 2020), "small": rng.randrange(2, 90), "large": rng.randrange(100, 10**6)}
    adj, adj2 = rng.sample(ADJECTIVES, 2)
    noun, noun2 = rng.sample(NOUNS, 2)
    sentence = choose(SENTENCES).format(
        adj=adj, adj2=adj2, noun=noun, noun2=noun2, verb=choose(VERBS), place=choose(PLACES), topic=choose(TOPICS),
        name=f"{choose(NAMES)} {choose(SURNAMES)}" if rng.random() < 0.3 else choose(NAMES), name2=choose(NAMES),
        town=choose(TOWNS), town2=choose(TOWNS), time=choose(TIMES).format(**numbers), **numbers,
    )  # fmt: skip
    return sentence[0].upper() + sentence[1:]


@cache
def sample_paragraphs() -> tuple[tuple[str, ...], ...]:
    """Return the sentences of the embedded sample by paragraph, without its needle."""
    assets = files("sp") / "assets"
    needle = json.loads((assets / "sample.json").read_text("utf-8"))["needle"]
    paragraphs = []
    for paragraph in (assets / "sample.txt").read_text("utf-8").replace(needle, "").split("\n"):
        sentences = re.split(r"(?<=[.!?]) +", " ".join(paragraph.split()))
        paragraphs.append(tuple(sentence for sentence in sentences if sentence))
    return tuple(paragraph for paragraph in paragraphs if paragraph)


JITTER = 64  # tokens over which a needle is moved at random, so that its place in a block of 32 or 64 varies
ATTEMPTS = 48  # sentences tried to fill the last few tokens


@dataclass(frozen=True)
class HaystackText:
    """A text with needles; `starts` is the token at which each needle begins."""

    text: str
    tokens: int
    starts: tuple[int, ...]

    @property
    def depths(self) -> tuple[float, ...]:
        """Positions of the needles, from 0 (start of the text) to 1 (end)."""
        return tuple(round(start / max(1, self.tokens), 4) for start in self.starts)


@dataclass(frozen=True)
class TextPiece:
    """A part of a document, white space included, and its number of tokens."""

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
) -> HaystackText:
    """Make a text of `room` tokens from sentences, with the needles between them.

    The position of a needle differs from its depth by at most half of `JITTER` and a sentence. The `header` ends with a
    line feed if it is to be on a line of its own. ConfigError: needles and header alone exceed the room.
    """
    fixed = sum(count(f" {needle}") for needle in needles) + len(needles) + (count(header) if header else 0)
    if fixed > room:
        raise ConfigError(f"the needles take {fixed} tokens, but the document has room for {room}; use longer prompts")
    pieces, seed = fill(sentences, room - fixed, count), rng.getrandbits(64)
    while True:
        document = place(pieces, needles, depths, count, random.Random(seed), header)
        excess = count(document.text) - room  # counts of parts may add up to a little less than the whole
        if excess <= 0 or not pieces:
            return document
        while pieces and excess > 0:
            excess -= pieces.pop().tokens


def fill(sentences: Iterable[Sentence], room: int, count: Count) -> list[TextPiece]:
    """Return pieces of at most `room` tokens, in order; near the end, sentences that do not fit are skipped."""
    known: dict[str, int] = {}  # tokens by text, because sentences repeat
    pieces: list[TextPiece] = []
    remaining, missed, line_start = room, 0, True
    for sentence in sentences:
        text = f"{'' if line_start else ' '}{sentence.text}{chr(10) if sentence.ends_line else ''}"
        if text not in known:
            known[text] = count(text)
        if known[text] <= remaining:
            pieces.append(TextPiece(text, known[text]))
            remaining -= known[text]
            line_start = sentence.ends_line
        else:
            missed += 1
        if missed >= ATTEMPTS or remaining < 4:
            break
    return pieces


def place(
    pieces: Sequence[TextPiece],
    needles: Sequence[str],
    depths: Sequence[float],
    count: Count,
    rng: random.Random,
    header: str = "",
) -> HaystackText:
    """Join the pieces with every needle between two of them, in the order of their depths."""
    ends = np.cumsum([0, *(piece.tokens for piece in pieces)])  # (pieces + 1,): tokens before each gap
    targets = [depth * ends[-1] + rng.uniform(-JITTER / 2, JITTER / 2) for depth in depths]
    gaps = sorted(int(np.abs(ends - target).argmin()) for target in targets)
    starts = [0] * len(needles)
    parts, total, done = [header], count(header) if header else 0, 0
    for gap, number in zip(gaps, np.argsort(depths, kind="stable").tolist(), strict=True):
        parts += [piece.text for piece in islice(pieces, done, gap)]
        total += int(ends[gap] - ends[done])
        done = gap
        before = next((part for part in reversed(parts) if part), "\n")
        # The needle is on a line of its own after a line feed, else in the running text.
        text = f"{needles[number]}\n" if before.endswith("\n") else f" {needles[number]}"
        starts[number] = total
        parts.append(text)
        total += count(text)
    parts += [piece.text for piece in pieces[done:]]
    return HaystackText("".join(parts).strip(), total + int(ends[-1] - ends[done]), tuple(starts))


def largest_fit(build: Callable[[int], str], room: int, count: Count, guess: int, *, least: int = 1) -> str:
    """Return the longest `build(size)` of at most `room` tokens, to within about 1 %, by bisection.

    It is for text that does not grow by pieces. ConfigError: even `build(least)` is longer.
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
        raise ConfigError(f"the text needs more than the available {room} tokens; use longer prompts")
    return best
