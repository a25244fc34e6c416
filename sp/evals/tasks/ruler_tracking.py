"""RULER's variable tracking: a chain of assignments in noise, all of whose variables hold one value.

Templates as in github.com/NVIDIA/RULER (Apache-2.0). Later links share no name with the question, so a scorer that only
matches the question finds the first one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice, pairwise
from string import ascii_uppercase

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, answer_room, register_task
from sp.evals.text.filler import filler
from sp.evals.text.haystack import haystack

HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "Question: Find all variables that are assigned the value {value} in the text above."
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {amount} variables are assigned the "
    "value {value}, they are:"
)
SHOT_LINES = 10
"""Lines of noise in the worked example."""


@register_task("vt", suite="ruler")
@dataclass(frozen=True)
class VariableTracking(Task):
    """A chain of `hops` + 1 variables.

    Parameters
    ----------
    hops : int
        Assignments from one variable to the next.
    shots : int
        Worked examples before the text, 0 or 1; RULER has one.
    """

    hops: int = 4
    shots: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.hops < 1 or self.shots not in (0, 1):
            raise ConfigError(f"hops must be at least 1 and shots 0 or 1, not {self.hops} and {self.shots}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; RULER generates 30 tokens, this at least so many."""
        rng = self.rng(index, tokens)
        names, value, statements = chain(self.hops, 5, rng)
        question = QUESTION.format(value=value)
        prefix = PREFIX.format(amount=len(names), value=value)
        header = "".join(shot(self.hops, rng) for _ in range(self.shots)) + HEADER
        room = tokens - MARKUP - count(question) - count(prefix)
        depths = sorted(rng.random() for _ in statements)
        found = haystack(filler("noise", rng), statements, depths, room, count, rng, header=header)
        return Example(
            id=self.example_id(index, tokens),
            task=self.name,
            document=found.text,
            question=question,
            answer_prefix=prefix,
            answers=tuple(names),
            needles=tuple(statements),
            facts={"depth": found.depths[0], "depths": found.depths},
            tokens=tokens,
            max_new_tokens=answer_room(30, names, count),
        )


def chain(hops: int, letters: int, rng: random.Random) -> tuple[list[str], str, list[str]]:
    """Names, the value, and the statements in order."""
    names: dict[str, None] = {}
    while len(names) <= hops:
        names.setdefault("".join(rng.choices(ascii_uppercase, k=letters)))
    value = str(rng.randrange(10_000, 100_000))
    order = list(names)
    return order, value, [f"VAR {order[0]} = {value}", *(f"VAR {b} = VAR {a}" for a, b in pairwise(order))]


def shot(hops: int, rng: random.Random) -> str:
    """A worked example in a few lines, with names of three letters."""
    names, value, statements = chain(hops, 3, rng)
    lines = [sentence.text for sentence in islice(filler("noise", rng), SHOT_LINES)]
    for at, statement in zip(
        sorted(rng.sample(range(SHOT_LINES), hops + 1), reverse=True), statements[::-1], strict=True
    ):
        lines.insert(at, statement)
    answer = PREFIX.format(amount=len(names), value=value) + " " + " ".join(names)
    return HEADER + "\n".join(lines) + "\n" + QUESTION.format(value=value) + answer + "\n\n"
