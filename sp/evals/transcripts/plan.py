"""Which tool each turn calls, what its question is about, and in whose results the evidence is to lie."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sp.errors import ConfigError
from sp.evals.text.tables import table

SYSTEM = "You are an agent. Answer in a few words, by what your tools return."

FOLDERS = ("src", "lib", "app", "core", "pkg", "internal")
STEMS = (
    "main", "store", "router", "worker", "parser", "session", "cache", "index", "client", "schema", "queue", "report",
    "loader", "planner", "bridge", "signer", "folder", "mapper", "runner", "budget", "ledger", "mirror",
)  # fmt: skip
ENDINGS = ("rb", "go", "rs", "kt", "java")


@dataclass(frozen=True)
class Tool:
    """A tool."""

    name: str
    description: str
    argument: str  # the one argument
    threads: tuple[str, ...]  # names of `THREADS`: whose facts its results hold
    requests: tuple[str, ...]  # how the user asks for a call; slot {value}
    notes: tuple[str, ...]  # what the assistant says of a result
    values: tuple[str, ...]  # frames of the argument's value; slots {folder}, {stem}, {ending}, {number}
    form: str = ""  # how the thread `facts` writes them in its results: a name of `Fact`'s forms
    begin: str = ""  # begin, end: what a result stands between
    end: str = ""
    between: str = ""  # what ends each piece of it, but the last
    schema: dict[str, Any] = field(init=False, repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        parameters = {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        told = {"name": self.name, "description": self.description, "parameters": parameters}
        object.__setattr__(self, "schema", {"type": "function", "function": told})

    def value(self, rng: random.Random) -> str:
        """What a call is given."""
        choose = rng.choice
        return choose(self.values).format(
            folder=choose(FOLDERS), stem=choose(STEMS), ending=choose(ENDINGS), number=rng.randrange(2, 99)
        )

    def call(self, value: str, number: int) -> dict[str, Any]:
        """A call as the assistant's message has it."""
        arguments = json.dumps({self.argument: value})
        return {"id": f"call_{number}", "type": "function", "function": {"name": self.name, "arguments": arguments}}


TOOLBOX = {one["name"]: Tool(**one) for one in table(__file__)["tools"]}  # tools by name


KINDS = {
    "newest": "the newest result",
    "old": "a result of some turn before",
    "two": "two results, both of which are needed",
    "update": "a value that later results change; the last one counts",
    "named": "a fact of any result, by its own name: words match",
}  # what questions are about. In all kinds but `named`, no rare word leads from the question to the value
ATTEMPTS = 64  # orders of tools that are tried


@dataclass(frozen=True)
class Slot:
    """A question to be made: its turn, what it is about, of which facts, and the results that hold the evidence."""

    turn: int
    kind: str
    thread: str
    results: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The tool of each turn, by name, and the question of each."""

    tools: tuple[str, ...]
    slots: tuple[Slot, ...]


def draw_plan(rng: random.Random, turns: int, last: str = "") -> Plan:
    """A plan in which every tool is called and every kind is asked about equally often, as far as that can be. `last`:
    kind of the last question; any if empty. ConfigError if so few turns have no room for the kind."""
    best: tuple[tuple[int, int], Plan] | None = None
    for _ in range(ATTEMPTS):
        few = rng.sample(list(TOOLBOX), rng.randint(1, len(TOOLBOX)))  # or no tool would be called twice in few turns
        plan = try_plan(rng, cycle(rng, few, turns), last)
        if plan is None:
            continue
        asked = Counter(one.kind for one in plan.slots)
        rank = sum(number * number for number in asked.values()), -len(set(plan.tools))
        if best is None or rank < best[0]:
            best = rank, plan
    if best is None:
        raise ConfigError(f"a question about {KINDS[last] if last else 'any result'} needs more than {turns} turns")
    return best[1]


def try_plan(rng: random.Random, tools: Sequence[str], last: str) -> Plan | None:
    """Questions after the results of these tools, each about what was asked about least; None if the last cannot be."""
    asked, slots = Counter([last] if last else []), list[Slot]()
    for turn in range(len(tools)):
        at_end = turn + 1 == len(tools)
        kinds = sorted([last] if last and at_end else KINDS, key=lambda kind: (asked[kind], rng.random()))
        found = next((one for kind in kinds if (one := slot(rng, turn, kind, tools))), None)
        if found is None:
            return None
        slots.append(found)
        asked[found.kind] += not (last and at_end)
    return Plan(tuple(tools), tuple(slots))


def slot(rng: random.Random, turn: int, kind: str, tools: Sequence[str]) -> Slot | None:
    """A question of a kind after so many results; None where they have no room for one."""
    threads = {"two": ("code", "sessions"), "update": ("updates",), "named": ("facts",)}.get(
        kind, ("code", "records", "sessions", "updates")
    )
    first = turn if kind == "newest" else 0
    stop = turn if kind == "old" else turn + 1
    amount = 2 if kind in ("two", "update") else 1
    room = {name: [at for at in range(first, stop) if name in TOOLBOX[tools[at]].threads] for name in threads}
    able = [name for name in threads if len(room[name]) >= amount]
    if not able:
        return None
    thread = rng.choice(able)
    return Slot(turn, kind, thread, tuple(sorted(rng.sample(room[thread], amount))))


def cycle(rng: random.Random, names: Sequence[str], length: int) -> list[str]:
    """Names in random order, each once before any is there twice."""
    found: list[str] = []
    while len(found) < length:
        found += rng.sample(names, len(names))
    return found[:length]
