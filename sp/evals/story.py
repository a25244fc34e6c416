"""Tasks that tell a story: passages in an order that matters, and questions whose evidence is some of their sentences.

A task draws the story from a set of phrases that is handed in. Examples are written in the task's held-out phrases;
whoever trains an instrument draws the same stories in other words, so that what is measured is not a memory of
templates.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Match, Task, answer_room
from sp.evals.text.filler import Sentence, filler, haystack

Phrases = Literal["held_out", "fresh", "blind"]
REDRAWS = 20  # stories tried until every piece of evidence stands in its document once


@dataclass(frozen=True)
class Question:
    """What can be asked of a story. `evidence`: every sentence the answer rests on, verbatim as in its passage, and
    nowhere else in the story."""

    text: str
    answers: tuple[str, ...]  # see `Example.answers`
    evidence: tuple[str, ...]
    match: Match = "all"  # see `Example.match`
    kind: str = ""  # what sort of question it is, where a task has several


@dataclass(frozen=True)
class Story:
    """Passages in the order they are told, other text between them, and questions; the first is the one to judge by."""

    passages: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class StoryTask(Task):
    """Base of tasks whose examples are stories.

    Parameters
    ----------
    facts : int
        Passages of a story; 0 takes one for every `spacing` tokens.
    phrases : str
        In which set of phrases examples are written; see `held_out`, `fresh` and `blind`.

    Attributes
    ----------
    held_out, fresh, blind : object
        Phrases and names that examples are written in; the latter two None where there are none. No training has any of
        them, but the training phrases of the embedded pair were widened by people who had read errors with the
        held-out ones, and by the end the fresh ones too. The blind ones (`sp.evals.text.tables`) came after the last
        training, from someone who had read no training phrases.
    spacing, fewest, most : int
        Tokens a passage, and the limits of their number.
    """

    seed: int = 0
    facts: int = 0
    phrases: Phrases = field(default="held_out", repr=False)
    # Not in the representation, so that examples in the held-out phrases are drawn and named as they always were.

    held_out: ClassVar[Any]
    fresh: ClassVar[Any] = None
    blind: ClassVar[Any] = None
    spacing: ClassVar[int] = 400
    fewest: ClassVar[int] = 12
    most: ClassVar[int] = 160

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.facts < 0:
            raise ConfigError(f"facts must be at least 0, not {self.facts}")
        if self.written_in is None:
            raise ConfigError(f"task {self.name} has no {self.phrases} phrases; leave out phrases={self.phrases}")

    @property
    def written_in(self) -> Any:
        """The phrases of the examples."""
        return getattr(self, self.phrases)

    def example_id(self, index: int, tokens: int) -> str:
        """See `Task.example_id`; it names the phrases unless they are the held-out ones."""
        named = super().example_id(index, tokens)
        return named if self.phrases == "held_out" else named.replace(self.name, f"{self.name}-{self.phrases}", 1)

    @abstractmethod
    def story(self, rng: random.Random, phrases: Any, facts: int) -> Story:
        """A story of about so many passages in the given phrases, the question that examples ask first. Its further
        questions are easier ones and others of the same kind, for training."""

    def filler(self, rng: random.Random, phrases: Any) -> Iterator[Sentence]:
        """What stands between the passages, without end: prose, unless the task has text of its own kind."""
        return filler("grammar", rng)

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`."""
        rng = self.rng(index, tokens)
        facts = self.facts or min(max(self.fewest, tokens // self.spacing), self.most)
        for _ in range(REDRAWS):
            story = self.story(rng, self.written_in, facts)
            asked = story.questions[0]
            room = tokens - MARKUP - count(asked.text)
            depths = sorted(rng.random() for _ in story.passages)
            found = haystack(self.filler(rng, self.written_in), story.passages, depths, room, count, rng)
            if all(found.text.count(one) == 1 for one in asked.evidence):
                break
        else:
            raise ConfigError(f"task {self.name}: {REDRAWS} stories repeat their evidence; ask for fewer facts")
        starts = [found.text.index(one) / max(1, len(found.text)) for one in asked.evidence]
        return self._made(
            index,
            tokens,
            (found.text, asked.text, ""),
            asked.answers,
            needles=asked.evidence,
            match=asked.match,
            facts={
                "depth": round(min(starts), 4) if starts else None,
                "depths": [round(one, 4) for one in starts],
                "kind": asked.kind,
                "passages": len(story.passages),
            },
            max_new_tokens=answer_room(8, asked.answers, count),
        )
