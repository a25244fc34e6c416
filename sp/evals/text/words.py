"""Word lists of the generators, our own; none stands in a training key of the embedded pair."""

from __future__ import annotations

import random

from sp.evals.text.tables import table

WORDS = {name: list(words) for name, words in table(__file__).items()}
ADJECTIVES, NOUNS, VERBS = (WORDS[name] for name in ("adjectives", "nouns", "verbs"))
NAMES, SURNAMES, TOWNS, SYLLABLES = (WORDS[name] for name in ("names", "surnames", "towns", "syllables"))


def pseudo_word(rng: random.Random, syllables: int = 3) -> str:
    """A word in no list, of so many syllables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(syllables))


def compound_key(rng: random.Random) -> str:
    """A key `adjective-noun`, as RULER's."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def uuid(rng: random.Random) -> str:
    """32 random hexadecimal digits in the groups of a UUID."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
