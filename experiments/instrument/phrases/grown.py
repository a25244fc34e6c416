"""Phrases of a task told in its grammar, and names put together from tokens: new ones whenever they are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sp.evals.story import Story

from . import kin, moving, ordered, paths
from .grammar import drawn, of_fields, sentence
from .spelling import Spelt

MODULES: dict[str, Any] = {"multi_session": kin, "babi": moving, "mrcr": ordered}
GROWN = (*MODULES, "json")
"""Tasks that have a grammar."""
SPELT = ("fact", "nolima", "multi_session", "babi")
"""Tasks whose names may be spelt from tokens."""
ASKS = 80
"""Questions for a path that a dialect has."""


def grown(name: str, phrases: Any, rng: random.Random) -> tuple[Any, Callable[[Story], Story]]:
    """Phrases whose frames are new ones of the grammar, and what a story of them is sent through."""
    if name == "json":
        return paths.asking(phrases, rng, ASKS)
    module = MODULES[name]
    fields = of_fields(module.GRAMMAR, module.FIELDS, rng, module.MANY)
    if name == "mrcr":
        fields["headers"] = tuple(map(sentence, fields["headers"]))
        fields["closings"] = tuple(map(sentence, fields["closings"]))
        fields["asks_only"] = drawn(ordered.ONLY, "asks", rng, 30)
        fields["asks_final"] = drawn(ordered.FINAL, "asks", rng, 20)
    for field, frames in fields.items():
        if field.startswith(("ask", "linked", "by_day")):
            fields[field] = (
                {kind: tuple(map(sentence, one)) for kind, one in frames.items()}
                if isinstance(frames, dict)
                else tuple(map(sentence, frames))
            )
    return replace(phrases, **fields), lambda story: story


def spelt(name: str, phrases: Any, rng: random.Random) -> Any:
    """Phrases whose names are made of tokens, any of the vocabulary."""
    small, large = Spelt(capital=False), Spelt(capital=True)

    def some(words: Spelt, many: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(words[rng.getrandbits(39)] for _ in range(many)))

    if name == "fact":
        return replace(phrases, adjectives=some(small, 300), nouns=some(small, 300))
    if name == "nolima":
        return replace(phrases, first=some(large, 400), last=some(large, 400))
    if name == "multi_session":
        values = {"town": some(large, 300), "trade": some(small, 300)}
        return replace(phrases, first=some(large, 400), last=some(large, 400), values=phrases.values | values)
    things = zip(some(small, 150), some(small, 150), strict=False)
    heads, kinds = some(large, 24), some(small, 3)
    return replace(
        phrases,
        people=some(large, 300),
        things=tuple(f"{a} {b}" for a, b in things),
        places=(*some(small, 30), *(f"{head} {kind}" for head in heads for kind in kinds)),
    )
