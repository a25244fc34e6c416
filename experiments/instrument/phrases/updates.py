"""Training phrases of the task `updates`."""

# ruff: noqa: E501
from __future__ import annotations

from sp.evals.tasks.updates import HELD_OUT, UpdatesPhrases
from sp.evals.text.tables import table

from .common import AFTER, BEFORE
from .expand import apart, frames, held

TABLES = table(__file__)

TAKEN = held(HELD_OUT)
WRITER = "[they|we|somebody|the mayor|a boy|the keeper|a clerk|the judge|a nurse|the printer]"
STATED = TABLES["STATED"]
UP = TABLES["UP"]
DOWN = TABLES["DOWN"]
BY_KIND = TABLES["BY_KIND"]
NUMBER = "[figure|number|count|value|entry]"


def asked(when: str, adverb: str) -> tuple[str, ...]:
    """Question patterns for the value at a time: its adjectives and its adverbs."""
    return (
        f"[What|Which] [is|was] the {when} {NUMBER} [of|with|beside|for] {{what}}?",
        f"[Give|Tell me|Name|Find|Say] the {when} {NUMBER} [of|with|beside|for] {{what}}.",
        f"[What|Which] {NUMBER} [did|does|has] {{what}} [have|had|hold|get|show] {adverb}?",
        f"[For|Of|As to|With] {{what}}, [what|which] [is|was] the {when} {NUMBER}?",
        f"{{what}}: [which|what] [{NUMBER[1:-1]}] {adverb}?",
        f"[What|Which] {NUMBER} [holds|held|stands|stood|was told] {adverb} [of|for] {{what}}?",
    )


TRAIN = UpdatesPhrases(
    stated=frames(STATED, 500, 1, TAKEN, 0.3),
    raised=frames(UP, 300, 2, TAKEN, 0.3),
    lowered=frames(DOWN, 300, 3, TAKEN, 0.3),
    by_kind={name: frames(patterns, 60, 4, TAKEN) for name, patterns in BY_KIND.items()},
    last=frames(asked("[last|latest|current|newest|present|most recent|final]", "[last|now|at last|at present|in the end]"), 200, 5, TAKEN),
    first=frames(asked("[first|earliest|original|oldest|initial]", "[first|at first|originally|in the beginning]"), 200, 6, TAKEN),
    often=frames(
        (
            "[How often|How many times] [did|was|has] {what} [get|given|been given|had|have|show] a [figure|number|count|value]?",
            "[How many] [figures|numbers|counts|values|entries] [did|does|has] {what} [have|get|show|had] [in all||so far|by now]?",
            "[Count|Give the count of|Tell me how many were] the [figures|numbers|values|entries] [of|with|beside|for] {what}.",
            "[For|Of|As to|With] {what}, how many [figures|counts|values|entries] [are told|were there|do we read]?",
            "{what}: how [many|often]?",
        ),
        120, 8, TAKEN,
    ),
    whose=frames(
        (
            "[What|Which thing|Which name|Who or what] [has|had|got|shows|held|is behind|fits|goes with|is told of with] [|the figure|the number|the count|the value] {value}?",
            "[Give|Tell me|Name|Find] [what|the name that|the thing that] [has|had|is behind|goes with|fits] {value}.",
            "[For|As to|With] {value}, [what|which] is the [name|thing]?", "{value}: [what|which] [name|thing]?",
        ),
        80, 7, TAKEN,
    ),
    before=apart(BEFORE, HELD_OUT.before),
    after=apart(AFTER, HELD_OUT.after),
)  # fmt: skip
