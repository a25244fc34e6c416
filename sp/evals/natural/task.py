"""Questions by hand about real documents as a task of sweeps, which ask whether their evidence is kept whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import Count, Example, Task, register_task
from sp.evals.natural.questions import Question, known_questions, own_questions

BYTES = 4
"""A token, on average, before any vocabulary is asked."""


@register_task("natural")
@dataclass(frozen=True)
class NaturalTask(Task):
    """Questions by hand about real documents, each as long as it is; see `sp eval natural`.

    Parameters
    ----------
    questions : str
        File of own questions, as `sp.evals.natural.questions.own_questions` reads it; those that ship if left out,
        whose documents must be in the cache.
    answers : bool
        In a sweep, also let the target answer, in full and in every cell.
    """

    questions: str = ""
    answers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")

    @cached_property
    def asked(self) -> list[Question]:
        """All questions; ConfigError for the first that is damaged, or without their documents."""
        return own_questions(Path(self.questions)) if self.questions else known_questions()

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; the document is as long as it is."""
        if index >= len(self.asked):
            raise ConfigError(f"example {index} is asked for, and task natural has {len(self.asked)} questions")
        return self.asked[index].example()

    def length(self, first: int, count: int) -> int:
        """About how many tokens the documents of some questions have, on average, to tell times by."""
        sizes = [len(one.raw) for one in self.asked[first : first + count]]
        return max(1, sum(sizes) // max(1, BYTES * len(sizes)))

    def digest(self, first: int, count: int) -> str:
        """Changes with whatever results of these questions depend on, their documents included."""
        return sha256("".join(one.digest for one in self.asked[first : first + count]).encode()).hexdigest()
