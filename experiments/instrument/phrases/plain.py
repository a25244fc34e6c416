"""Ordinary words in no order, so that surroundings of what is told are not a list to be learned; none is held out."""

from __future__ import annotations

import random

from sp.evals.text.tables import table

from .names_b import PLACES, QUALITIES, THINGS, coined

TABLES = table(__file__)

PLAIN = list(TABLES["PLAIN"])


def odd(rng: random.Random, least: int, most: int) -> str:
    """So many ordinary words, some with a capital or coined, seldom a small number.

    Examples
    --------
    >>> len(odd(random.Random(0), 3, 3).split())
    3
    """
    found = []
    for _ in range(rng.randint(least, most)):
        drawn = rng.random()
        word = rng.choice(PLAIN)
        if drawn < 0.1:
            word = coined(rng)
        elif drawn < 0.14:
            word = str(rng.randrange(2, 2000))
        elif drawn < 0.3:
            word = rng.choice(rng.choice((THINGS, QUALITIES, PLACES)))
        found.append(word.capitalize() if rng.random() < 0.08 else word)
    return " ".join(found)


def around(core: str, rng: random.Random) -> str:
    """A core with odd words before, behind, or between its own, up to three times.

    A mark stands between odd words and a slot, so that it can be told where a name begins and ends.
    """
    words = core.split(" ")
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 2, 3))):
        at = rng.choice((0, len(words), rng.randint(0, len(words))))
        if at and words[at - 1] in ("the", "a", "The", "A"):
            at -= 1
        following = "".join(words[at : at + 2])
        mark = rng.choice((",", ",", ":", " -", ";")) if "{" in following else rng.choice(("", ","))
        if at and words[at - 1].endswith("}"):
            words[at - 1] += rng.choice((",", ",", " -", ";"))
        words[at:at] = [odd(rng, 1, 6) + (mark if at < len(words) else "")]
    text = " ".join(words)
    return text[0].upper() + text[1:] + rng.choice((".", ".", ".", ".", "!", ";", ""))
