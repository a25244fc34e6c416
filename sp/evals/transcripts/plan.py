"""Plans of transcripts: the tool of each turn, the subject of its question, and the results that hold the evidence."""

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
    """A tool of the agent."""

    name: str
    description: str
    argument: str  # name of its only argument
    threads: tuple[str, ...]  # names of `THREADS` whose facts are in its results
    requests: tuple[str, ...]  # frames of the user's request for a call; slot {value}
    notes: tuple[str, ...]  # remarks of the assistant on a result
    values: tuple[str, ...]  # frames of the argument's value; slots {folder}, {stem}, {ending}, {number}
    form: str = ""  # form of the facts of the thread `facts` in its results: a name of `Fact`'s forms
    begin: str = ""  # text before a result
    end: str = ""  # text after a result
    between: str = ""  # text after each piece of a result but the last
    schema: dict[str, Any] = field(init=False, repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        parameters = {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        object.__setattr__(self, "schema", {"type": "function", "function": function})

    def value(self, rng: random.Random) -> str:
        """Draw the argument of a call."""
        choose = rng.choice
        return choose(self.values).format(
            folder=choose(FOLDERS), stem=choose(STEMS), ending=choose(ENDINGS), number=rng.randrange(2, 99)
        )

    def call(self, value: str, number: int) -> dict[str, Any]:
        """Return a call for the assistant's message."""
        arguments = json.dumps({self.argument: value})
        return {"id": f"call_{number}", "type": "function", "function": {"name": self.name, "arguments": arguments}}


TOOLBOX = {row["name"]: Tool(**row) for row in table(__file__)["tools"]}  # tools by name


KINDS = {
    "newest": "the newest result",
    "old": "a result of some turn before",
    "two": "two results, both of which are needed",
    "update": "a value that later results change; the last one counts",
    "named": "a fact of any result, by its own name: words match",
}  # kinds of questions; in all kinds but `named`, question and evidence have no rare word in common
ATTEMPTS = 64  # orders of tools that are tried


@dataclass(frozen=True)
class Slot:
    """A question to be written: its turn, its kind, the thread of its facts, and the results that hold the evidence."""

    turn: int
    kind: str
    thread: str
    results: tuple[int, ...]


@dataclass(frozen=True)
class TranscriptPlan:
    """The tool of each turn, by name, and its question."""

    tools: tuple[str, ...]
    slots: tuple[Slot, ...]


def draw_plan(rng: random.Random, turns: int, last: str = "") -> TranscriptPlan:
    """Draw a plan in which every tool is called and all kinds of questions are equally frequent, as far as possible.

    `last` is the kind of the last question; any if empty. ConfigError: the turns are too few for the kind.
    """
    best: tuple[tuple[int, int], TranscriptPlan] | None = None
    for _ in range(ATTEMPTS):
        # A subset of the tools, or no tool would be called twice in a transcript of few turns.
        tools = rng.sample(list(TOOLBOX), rng.randint(1, len(TOOLBOX)))
        plan = try_plan(rng, cycle(rng, tools, turns), last)
        if plan is None:
            continue
        counts = Counter(planned.kind for planned in plan.slots)
        rank = sum(number * number for number in counts.values()), -len(set(plan.tools))
        if best is None or rank < best[0]:
            best = rank, plan
    if best is None:
        raise ConfigError(f"a question about {KINDS[last] if last else 'any result'} needs more than {turns} turns")
    return best[1]


def try_plan(rng: random.Random, tools: Sequence[str], last: str) -> TranscriptPlan | None:
    """Plan a question after each result, of the rarest kind so far; None if the last one is impossible."""
    counts, slots = Counter([last] if last else []), list[Slot]()
    for turn in range(len(tools)):
        at_end = turn + 1 == len(tools)
        kinds = sorted([last] if last and at_end else KINDS, key=lambda kind: (counts[kind], rng.random()))
        planned = next((candidate for kind in kinds if (candidate := slot(rng, turn, kind, tools))), None)
        if planned is None:
            return None
        slots.append(planned)
        counts[planned.kind] += not (last and at_end)
    return TranscriptPlan(tuple(tools), tuple(slots))


def slot(rng: random.Random, turn: int, kind: str, tools: Sequence[str]) -> Slot | None:
    """Draw a question of a kind after the result of a turn; None where no results fit it."""
    threads = {"two": ("code", "sessions"), "update": ("updates",), "named": ("facts",)}.get(
        kind, ("code", "records", "sessions", "updates")
    )
    first = turn if kind == "newest" else 0
    stop = turn if kind == "old" else turn + 1
    amount = 2 if kind in ("two", "update") else 1
    room = {
        name: [number for number in range(first, stop) if name in TOOLBOX[tools[number]].threads] for name in threads
    }
    able = [name for name in threads if len(room[name]) >= amount]
    if not able:
        return None
    thread = rng.choice(able)
    return Slot(turn, kind, thread, tuple(sorted(rng.sample(room[thread], amount))))


def cycle(rng: random.Random, names: Sequence[str], length: int) -> list[str]:
    """Return names in random order, each once before any occurs twice."""
    order: list[str] = []
    while len(order) < length:
        order += rng.sample(names, len(names))
    return order[:length]
