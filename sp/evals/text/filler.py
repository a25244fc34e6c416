"""Filler text that needs no data: streams of sentences that never end, drawn from one generator each.

`grammar` and `sample` are varied prose, `noise` is the repeated line of RULER's needle tasks, whose chunks are all
alike, so a needle stands out from it by being anything else.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from sp.evals.text.tables import table
from sp.evals.text.words import ADJECTIVES, NAMES, NOUNS, SURNAMES, TOWNS, VERBS

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
    """A sentence, and whether its line ends behind it."""

    text: str
    ends_line: bool


def filler(kind: Filler, rng: random.Random) -> Iterator[Sentence]:
    """Sentences of a kind of filler, without end; the generator alone decides which.

    Examples
    --------
    >>> stream = filler("noise", random.Random(0))
    >>> next(stream).text[:19]
    'The grass is green.'
    """
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
        for left in reversed(range(rng.randrange(2, 9))):
            yield Sentence(grammar_sentence(rng), left == 0)


def grammar_sentence(rng: random.Random) -> str:
    """One sentence of a small grammar; there are more than 10^9."""
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
    """Sentences of the embedded sample by paragraph, less its needle."""
    assets = files("sp") / "assets"
    needle = json.loads((assets / "sample.json").read_text("utf-8"))["needle"]
    paragraphs = []
    for paragraph in (assets / "sample.txt").read_text("utf-8").replace(needle, "").split("\n"):
        sentences = re.split(r"(?<=[.!?]) +", " ".join(paragraph.split()))
        paragraphs.append(tuple(one for one in sentences if one))
    return tuple(paragraph for paragraph in paragraphs if paragraph)
