"""Training phrases of the task `nolima`."""

# ruff: noqa: E501
from __future__ import annotations

from sp.evals.tasks.nolima import HELD_OUT, NolimaPhrases
from sp.evals.text.tables import table

from .common import AFTER, BEFORE
from .expand import apart, frames, held
from .wide import FAMILY, GIVEN

TABLES = table(__file__)

TAKEN = held(HELD_OUT)
NEAR = "[beside|next to|behind|near|by|around|opposite|across from|in front of|not far from|in the shadow of|under|close to]"
HOME = "[house|cottage|flat|room|shop|garden|front door|balcony|stall|workshop]"
FACTS = TABLES["FACTS"]
WHOM = "[who|whom|which person|what person|which man or woman|whose name]"
ASKED = TABLES["ASKED"]
WITH = "[is told of with|goes with|is linked to|is mentioned with|is named along with|belongs to|has to do with|is in a sentence with]"
BY_THING = TABLES["BY_THING"]
BY_WHO = TABLES["BY_WHO"]
KIND_BY_WHO = TABLES["KIND_BY_WHO"]
KNOWN = TABLES["KNOWN"]

TRAIN = NolimaPhrases(
    facts={name: frames(patterns, 700, at, TAKEN, 0.3) for at, (name, patterns) in enumerate(FACTS.items())},
    asked={name: frames(patterns, 80, at, TAKEN) for at, (name, patterns) in enumerate(ASKED.items())},
    by_thing=frames(BY_THING, 60, 20, TAKEN),
    by_who=frames(BY_WHO, 60, 21, TAKEN),
    kind_by_who=frames(KIND_BY_WHO, 60, 22, TAKEN),
    known=frames(KNOWN, 60, 23, TAKEN),
    before=apart(BEFORE, HELD_OUT.before),
    after=apart(AFTER, HELD_OUT.after),
    first=GIVEN,
    last=FAMILY,
)
