"""Relations said and asked for in many ways: what lies in what, or over it, who gave what to whom, what came first.

A relation has slots, ways to say it, and questions for one of the slots. Two of a kind are told against each other
where words decide which is which: the cup in the bowl is not the bowl in the cup.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.tables import table

from .grammar import Grammar

TABLES = table(__file__)


@dataclass(frozen=True)
class Relation:
    """Rules that tell of it, and rules that ask, each with the slot it asks for.

    `slots`: the sort of every slot: "thing", "place", "person", "value", "job", "town" or "event"; `told`: rule of the
    statements; `asks`, tuple of (str, str): rule of a question, and the slot that answers it; `mirrored`: whether a
    second statement with `a` and `b` exchanged and another value is told as well.
    """

    slots: dict[str, str]
    told: str
    asks: tuple[tuple[str, str], ...]
    mirrored: bool = False


RULES = TABLES["RULES"]
GRAMMAR = Grammar(RULES)
TWO = {"a": "thing", "b": "thing"}
THREE = {"a": "event", "b": "event", "c": "event"}
RELATIONS = (
    Relation(TWO | {"v": "value"}, "inner_told", (("inner_value", "v"), ("inner_value", "v")), mirrored=True),
    Relation(TWO, "inside_told", (("inside_what", "a"), ("inside_where", "b"))),
    Relation(TWO, "above_told", (("above_upper", "a"), ("above_lower", "b"))),
    Relation(THREE, "order_told", (("order_first", "a"), ("order_second", "b"), ("order_last", "c"))),
    Relation({"p": "person", "q": "person", "a": "thing"}, "gift_told",
             (("gift_from", "p"), ("gift_to", "q"), ("gift_what", "a"))),
    Relation({"p": "person", "a": "thing"}, "own_told", (("own_who", "p"), ("own_what", "a"))),
    Relation({"p": "person", "q": "person"}, "older_told", (("older_old", "p"), ("older_young", "q"))),
    Relation({"p": "person", "x": "place", "y": "place"}, "moved_told", (("moved_now", "y"), ("moved_before", "x"))),
    Relation({"p": "person", "x": "job", "y": "job"}, "job_told", (("job_now", "y"), ("job_before", "x"))),
    Relation(TWO | {"c": "thing", "d": "thing"}, "gap_told",
             (("gap_a", "a"), ("gap_b", "b"), ("gap_c", "c"), ("gap_d", "d"))),
    Relation({"a": "thing", "n": "name"}, "name_told", (("name_what", "n"), ("name_of", "a"))),
)  # fmt: skip
WEIGHTS = (5, 3, 1, 2, 2, 1, 1, 2, 2, 1, 1)
"""How often each is told; `json` is wrong in the direction of what lies in what."""
