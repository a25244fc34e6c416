"""Names of few parts, so that many in a story begin or end alike, as they do in what examples tell.

Names drawn from thousands are known by their first token. Models trained on those alone took one name for another that
shared a word with it, or stopped behind the shared word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt
from typing import Any

from .names_b import OTHERS, PLACES, QUALITIES, THINGS

PARTS = {
    "fact": ("adjectives", "nouns"),
    "nolima": ("first", "last"),
    "multi_session": ("first", "last"),
    "mrcr": ("syllables", "people"),
    "code": ("verbs", "objects", "qualities", "things"),
}
"""By task, what of its phrases names are made of; `json` and `babi` have theirs in other forms."""


def crowded(name: str, phrases: Any, rng: random.Random, facts: int) -> Any:
    """The phrases of a task with fewer parts of names; enough for so many facts to have different ones."""
    amount = ceil(3 * sqrt(facts)) + rng.randint(4, 10)

    def few(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(rng.sample(values, min(amount, len(values))))

    if name == "json":
        return replace(phrases, names=tuple(few(part) for part in phrases.names))
    if name == "babi":
        syllables = few(OTHERS)
        return replace(
            phrases,
            people=joined(rng, syllables, syllables, "", facts),
            things=joined(rng, few(QUALITIES), few(THINGS), " ", facts),
            places=places(rng, few(PLACES), few(THINGS)[:3], syllables),
        )
    return replace(phrases, **{part: few(getattr(phrases, part)) for part in PARTS.get(name, ())})


def joined(
    rng: random.Random, first: Sequence[str], second: Sequence[str], between: str, facts: int
) -> tuple[str, ...]:
    """Names of one of each, more than a story of so many facts takes."""
    found = [f"{a}{between}{b}" for a in first for b in second if a != b]
    names = rng.sample(found, min(len(found), facts + 40))
    return tuple(names if between else (one.capitalize() for one in names))


def places(rng: random.Random, plain: Sequence[str], kinds: Sequence[str], syllables: Sequence[str]) -> tuple[str, ...]:
    """Places of one word, and of two that share their first with one another or with one of the former."""
    towns = ["".join(rng.sample(syllables, 3)).capitalize() for _ in plain]
    heads = (*towns, *plain)
    pairs = [f"{head} {kind}" for head in rng.sample(heads, len(heads) // 2) for kind in kinds]
    return (*plain, *rng.sample(towns, len(towns) // 2), *pairs)
