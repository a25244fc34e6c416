"""The tools of the agent: schemas, how a call is asked for and made, and whose facts their results hold."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

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
    """A tool.

    Parameters
    ----------
    argument : str
        The one argument.
    threads : tuple of str
        Names of `THREADS`: whose facts its results hold.
    requests : tuple of str
        How the user asks for a call; slot {value}.
    notes : tuple of str
        What the assistant says of a result.
    values : tuple of str
        Frames of the argument's value; slots {folder}, {stem}, {ending}, {number}.
    form : str
        How the thread `facts` writes them in its results: a name of `Fact`'s forms.
    begin, end : str
        What a result stands between.
    between : str
        What ends each piece of it, but the last.
    """

    name: str
    description: str
    argument: str
    threads: tuple[str, ...]
    requests: tuple[str, ...]
    notes: tuple[str, ...]
    values: tuple[str, ...]
    form: str = ""
    begin: str = ""
    end: str = ""
    between: str = ""
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
        """A call as the assistant's message has it.

        Examples
        --------
        >>> TOOLBOX["run_tests"].call("src/cache", 3)["function"]
        {'name': 'run_tests', 'arguments': '{"target": "src/cache"}'}
        """
        arguments = json.dumps({self.argument: value})
        return {"id": f"call_{number}", "type": "function", "function": {"name": self.name, "arguments": arguments}}


TOOLBOX = {one["name"]: Tool(**one) for one in table(__file__)["tools"]}
"""Tools by name."""
