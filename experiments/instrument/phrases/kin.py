"""A grammar of what a chat tells of relatives and others: who somebody is, where they live, what they do, their number.

Values stand among other towns, trades and idioms, so that the clause must be read: "no longer a baker but a cook",
"as a cook, for a laugh".
"""

from __future__ import annotations

import random

from sp.evals.text.tables import table

from .grammar import Grammar
from .wide import JOBS, PLACE_NAMES

TABLES = table(__file__)


def town(rng: random.Random) -> str:
    """A town that is no answer."""
    return PLACE_NAMES[rng.getrandbits(39)]


def job(rng: random.Random) -> str:
    """A trade that is no answer."""
    return JOBS[rng.getrandbits(39)]


RULES = TABLES["RULES"]
GRAMMAR = Grammar({"town": town, "job": job} | RULES)
FIELDS = TABLES["FIELDS"]
MANY = {"links": 24, "facts": 24, "asked": 40, "linked": 24, "by_day": 16, "whom": 10}
"""Frames of each field that a dialect draws from."""
