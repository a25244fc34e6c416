"""Base of tasks with stories: passages in an order that matters, and questions with sentences of them as evidence.

A task draws the story from a set of phrases that is passed in. Examples use the task's held-out phrases; training of
the evaluation pair draws the same stories in other words, so that memorised templates are not measured.
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
REDRAWS = 20  # attempts at a story in whose document every piece of evidence occurs once


@dataclass(frozen=True)
class StoryQuestion:
    """A question about a story; `evidence` are the sentences that the answer needs, verbatim and once in the story."""

    text: str
    answers: tuple[str, ...]  # see `Example.answers`
    evidence: tuple[str, ...]
    match: Match = "all"  # see `Example.match`
    kind: str = ""  # kind of the question, where a task has several


@dataclass(frozen=True)
class Story:
    """Passages in order, to be separated by other text, and questions; the first is the one of the example."""

    passages: tuple[str, ...]
    questions: tuple[StoryQuestion, ...]


@dataclass(frozen=True)
class StoryTask(Task):
    """Base of tasks whose examples are stories.

    Parameters
    ----------
    facts : int
        Passages of a story; 0 means one for every `spacing` tokens.
    phrases : str
        Set of phrases of the examples: `held_out`, `fresh` or `blind`.

    Attributes
    ----------
    held_out, fresh, blind : object
        Phrases and names of the examples; the latter two None where there are none. No training has any of them, but
        the training phrases of the embedded pair were extended by people who had read errors with the held-out ones,
        and by the end the fresh ones too. The blind ones (`sp.evals.text.tables`) were written after the last training,
        by someone who had read no training phrases.
    spacing, fewest, most : int
        Tokens of text for each passage, and the limits of the number of passages.
    """

    seed: int = 0
    facts: int = 0
    phrases: Phrases = field(default="held_out", repr=False)
    # Not in the representation, which seeds the generator: examples in the held-out phrases stay the same.

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
            raise ConfigError(f"task {self.name} has no {self.phrases} phrases; omit phrases={self.phrases}")

    @property
    def written_in(self) -> Any:
        """The phrases of the examples."""
        return getattr(self, self.phrases)

    def example_id(self, index: int, tokens: int) -> str:
        """Return the id of an example, with the set of phrases unless it is the held-out one."""
        named = super().example_id(index, tokens)
        return named if self.phrases == "held_out" else named.replace(self.name, f"{self.name}-{self.phrases}", 1)

    @abstractmethod
    def story(self, rng: random.Random, phrases: Any, facts: int) -> Story:
        """Draw a story of about `facts` passages; its first question is that of the example.

        Further questions, which are easier or of the same kind, are for training.
        """

    def filler(self, rng: random.Random, phrases: Any) -> Iterator[Sentence]:
        """Yield text between the passages, without end: prose, unless the task has another kind of text."""
        return filler("grammar", rng)

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Draw a story and put its passages into other text."""
        rng = self.rng(index, tokens)
        facts = self.facts or min(max(self.fewest, tokens // self.spacing), self.most)
        for _ in range(REDRAWS):
            story = self.story(rng, self.written_in, facts)
            question = story.questions[0]
            room = tokens - MARKUP - count(question.text)
            depths = sorted(rng.random() for _ in story.passages)
            document = haystack(self.filler(rng, self.written_in), story.passages, depths, room, count, rng)
            if all(document.text.count(sentence) == 1 for sentence in question.evidence):
                break
        else:
            raise ConfigError(f"task {self.name}: evidence occurred twice in {REDRAWS} stories; use fewer facts")
        starts = [document.text.index(sentence) / max(1, len(document.text)) for sentence in question.evidence]
        return self._made(
            index,
            tokens,
            (document.text, question.text, ""),
            question.answers,
            needles=question.evidence,
            match=question.match,
            facts={
                "depth": round(min(starts), 4) if starts else None,
                "depths": [round(sentence, 4) for sentence in starts],
                "kind": question.kind,
                "passages": len(story.passages),
            },
            max_new_tokens=answer_room(8, question.answers, count),
        )
