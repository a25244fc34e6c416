"""Training phrases of the task `multi_session`."""

# ruff: noqa: E501
from __future__ import annotations

from sp.evals.tasks.multi_session import HELD_OUT, SessionPhrases
from sp.evals.text.tables import table

from .common import AFTER, BEFORE
from .expand import apart, frames, held
from .names import prose
from .wide import FAMILY, GIVEN, JOBS, PLACE_NAMES

TABLES = table(__file__)

TAKEN = held(HELD_OUT)
LINKS = TABLES["LINKS"]
FACTS = TABLES["FACTS"]
NUMBER = "[number|phone number|telephone number|line]"
ASKED = TABLES["ASKED"]
LINKED = TABLES["LINKED"]
TRAIN = SessionPhrases(
    headers=("{day}:", "# {day}", "Date: {day}", "On {day}", "== {day} ==", "{day}, chat", "<{day}>", "({day})", "* {day}", "Day of the session: {day}",
             "Log of {day}", "{day} | session", "New session ({day})", "~ {day} ~", "Talk on {day}"),
    links=frames(LINKS, 500, 1, TAKEN, 0.25),
    facts={name: frames(patterns, 600, 2, TAKEN, 0.25) for name, patterns in FACTS.items()},
    asked={name: frames(patterns, 120, 3, TAKEN) for name, patterns in ASKED.items()},
    linked=frames(LINKED, 80, 4, TAKEN),
    by_day=frames(
        (
            "[Who|Which person|Whom] [was|is] [talked of|talked about|spoken of|told of|mentioned|discussed] [on|in the session of|in the chat of] {day}?",
            "[Which|What] [name|person] [fell|came up|was told|was mentioned] on {day}?",
            "[Name|Tell me|Give|Find] the [person|name] [of|told of on|mentioned on] {day}.",
            "{day}: [who|which name|which person]?", "On {day}, [who|which person|whose name] [came up|was told of]?",
            "[Whom|Which person] did [we|people|the session|somebody] [discuss|mention|name] on {day}?",
        ),
        100, 6, TAKEN,
    ),
    whom=("a {kin} of {speaker}", "{speaker}'s dear {kin}", "{speaker}'s own {kin}", "the {kin} that {speaker} has", "that {kin} of {speaker}",
          "the person who is {kin} to {speaker}", "{kin} of {speaker}", "the one {kin} of {speaker}", "the {kin} {speaker} told of",
          "this {kin} of {speaker}", "{speaker}'s one {kin}", "someone's {kin}, namely that of {speaker}"),
    values={"town": PLACE_NAMES, "trade": JOBS},
    before=apart(BEFORE, HELD_OUT.before),
    after=apart(AFTER, HELD_OUT.after),
    first=GIVEN,
    last=FAMILY,
    talk=prose,
)  # fmt: skip
