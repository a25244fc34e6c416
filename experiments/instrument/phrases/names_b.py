"""Names for training on pieces, moves, code and records; none of them is a word of `sp.evals.text.tables`."""

# ruff: noqa: SIM905
from __future__ import annotations

import random

from sp.evals.text.tables import SYLLABLES as HELD_OUT
from sp.evals.text.tables import table

from .weave import several

TABLES = table(__file__)

SYLLABLES = """ba bel bor bri ca cor da del dor dra el en fa fen fir ga gal gor ha hel im jo ka kel la lin lor ma mer mi
mon na nes ni no or pa per qui ra rel ri ro sa sel shi so ta tel thi to tri ul va ver vi wen xa ya zo zu""".split()

QUALITIES = list(TABLES["QUALITIES"])

THINGS = list(TABLES["THINGS"])

PLACES = list(TABLES["PLACES"])

PEOPLE = list(TABLES["PEOPLE"])

TITLES = ("", "", "", "", "", "old ", "young ", "Mr ", "Mrs ", "Doctor ", "Aunt ", "Captain ", "Cousin ")


OTHERS = tuple(
    f"{a}{b}{c}"
    for a in "bcdfghjklmnprstvwxz"
    for b in "aeiouy"
    for c in ("", *"bdfgklmnprstvxz")
    if f"{a}{b}{c}" not in HELD_OUT
)
"""Further syllables by the thousand, so that a model learns to spell names and not a list of them."""


def coined(rng: random.Random) -> str:
    """A name of two or more syllables that is in no list.

    Examples
    --------
    >>> coined(random.Random(0)).istitle()
    True
    """
    sounds = SYLLABLES if rng.random() < 0.5 else OTHERS
    return "".join(rng.choices(sounds, k=rng.randint(2, 3))).capitalize()


MORE_PEOPLE = (*PEOPLE, *several(lambda rng: rng.choice(TITLES) + coined(rng), 4000, 1))
"""Listed first names, and thousands of coined ones."""

COMPOUND_PLACES = several(lambda rng: f"{rng.choice(QUALITIES)} {rng.choice(PLACES)}", 600, 2)
COINED_PLACES = several(lambda rng: f"{coined(rng)} {rng.choice(PLACES)}", 1500, 3)
MORE_PLACES = (*PLACES, *COMPOUND_PLACES, *COINED_PLACES)
"""Places by a plain word, with a quality, and with a coined name."""
