"""Words of the training phrases: names, keys, odd words. None of them is in `sp.evals.text.tables`."""

from __future__ import annotations

import random

from sp.evals.text import tables as words
from sp.evals.text.tables import table

TABLES = table(__file__)

REAL_FIRST = list(TABLES["REAL_FIRST"])
REAL_LAST = list(TABLES["REAL_LAST"])
ADJECTIVES = list(TABLES["ADJECTIVES"])
NOUNS = list(TABLES["NOUNS"])
PAST = list(TABLES["PAST"])
PLACES = list(TABLES["PLACES"])
CONSONANTS, VOWELS = "bcdfghklmnprstvwz", "aeiou"


def odd_word(rng: random.Random, syllables: int = 2) -> str:
    """An invented word, of other syllables than `sp.evals.text.tables.pseudo_word`."""
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables))
    return word + rng.choice(("", "n", "r", "s", "l", "rt", "nd", "st"))


def invented(seed: int, amount: int, syllables: int = 2) -> list[str]:
    """So many different odd words."""
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < amount:
        found.setdefault(odd_word(rng, syllables))
    return list(found)


def ours(names: list[str]) -> tuple[str, ...]:
    """The names that no example uses: less those of `sp.evals.text.tables`, letter case aside."""
    lists = (words.NAMES, words.SURNAMES, words.NOUNS, words.ADJECTIVES, words.VERBS, words.TOWNS)
    taken = {one.lower() for some in lists for one in some}
    return tuple(dict.fromkeys(one for one in names if one.lower() not in taken))


FIRST = ours(REAL_FIRST + [one.capitalize() for one in invented(1, 200)])
LAST = ours(REAL_LAST + [one.capitalize() for one in invented(2, 200)])
ODD = ours(invented(3, 400) + invented(4, 200, 3))
TOWNS = ours(
    [
        one.capitalize() + end
        for one, end in zip(invented(5, 120, 1), ["ford", "bury", "wick", "ham", "by"] * 24, strict=True)
    ]
)
ADJECTIVES, NOUNS = list(ours(ADJECTIVES)), list(ours(NOUNS))


def prose(rng: random.Random) -> str:
    """A sentence of training filler; its frames are none of `sp.evals.text.filler`'s."""
    choose = rng.choice
    roll = rng.random()
    who, other = choose(FIRST), choose(FIRST)
    adj, noun, noun2, verb, place = choose(ADJECTIVES), choose(NOUNS), choose(NOUNS), choose(PAST), choose(PLACES)
    if roll < 0.12:
        who = f"{who} {choose(LAST)}"
    kinds = (
        f"{who} {verb} the {noun} that {other} {choose(PAST)}.",
        f"On the way to the {place} {who} {verb} some {adj} {noun}s.",
        f"Nobody {verb} the {adj} {noun}, not even {who}.",
        f"If a {noun} is {adj}, it belongs into the {place}.",
        f"How {adj} the {noun} looked when {who} {verb} it!",
        f"One {noun} and {rng.randrange(2, 99)} {noun2}s were left in the {place} of {choose(TOWNS)}.",
        f"{who} said: the {noun} is {adj}, the {noun2} is {choose(ADJECTIVES)}.",
        f"Why should a {adj} {noun} be {verb} by {other}?",
        f"Since {rng.randrange(1400, 2030)} the {place} has had {rng.randrange(2, 5000)} {noun}s.",
        f"{choose(TOWNS)} is known for its {noun}s and its {place}.",
        f"A {choose(ODD)} is a kind of {adj} {noun}.",
        f"The {place} opens at {rng.randrange(1, 13)} and {who} waits there with a {noun}.",
    )
    return choose(kinds)
