"""Base class of tasks: frozen dataclasses that make the i-th example of a given length, always the same one.

Examples name their evidence, so that a selection can be judged by the evidence in it and not only by the answer.
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sp.chat import Thinking, Turn, render_located, spells_markup
from sp.config import Registry
from sp.errors import PromptError, unknown_name
from sp.evals.matches import MATCHES
from sp.evals.matches import Match as Match  # re-exported for tasks
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import Prompt

Count = Callable[[str], int]  # tokens of a text in the vocabulary of the model that answers
WITHOUT = Thinking("off")  # the default of examples, whose answers are short and need no thinking
TASK_SLOT = "{task}"
"""Slot in options of a scorer for the name of the task it runs on, such as for weights that were trained without it."""
RESERVED = ("schema", "kind", "run", "models", "options")
"""Columns of every line in files of records, which facts of examples must not replace."""
MARKUP = 16  # tokens reserved for the chat template around a prompt's text


@dataclass(frozen=True)
class Example:
    """A prompt with a known answer.

    Parameters
    ----------
    id : str
        Unique among all tasks, options and lengths.
    task : str
        Name of the task.
    document, question, answer_prefix : str
        See `Prompt.from_document`. Only the document may be left out by a selection.
    answers : tuple of str
        Texts that a right answer contains.
    needles : tuple of str
        Every sentence of the document that is evidence for the answer, verbatim; empty where the whole text counts.
    match : str
        Method by which the answer is scored: a name of `sp.evals.matches.MATCHES`.
    facts : dict
        Properties of the example for the record: depth, phrasing, keys.
    tokens : int
        Requested length of the prompt.
    max_new_tokens : int
        Longest answer in tokens.
    places : tuple of int
        Character of the document at which each needle begins; its first occurrence by default.
    turns : tuple of Turn
        A whole conversation in place of document and question. All but the last turn of the user may be left out.

    Raises
    ------
    ConfigError
        The name of the method is unknown.
    """

    id: str
    task: str
    document: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    needles: tuple[str, ...] = ()
    match: Match = "all"
    facts: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    max_new_tokens: int = 32
    places: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise unknown_name("match", self.match, MATCHES)

    def prompt(
        self, template: str | ChatTemplate | None, thinking: Thinking = WITHOUT, tokenizer: Tokenizer | None = None
    ) -> Prompt:
        """Render the prompt and mark every needle; an answer that begins with thinking gets no prefix.

        Parameters
        ----------
        tokenizer : Tokenizer, optional
            Finds text of a conversation that spells markup.

        Raises
        ------
        PromptError
            As `Prompt.from_document`, and for a conversation that the template cannot show.
        """
        if self.turns:
            if template is None:
                raise PromptError(f"{self.id} is a conversation, and this model has no chat template to show one")
            chat = ChatTemplate.of(template)
            is_markup = spells_markup(tokenizer) if tokenizer else lambda text: False
            located = render_located(chat, self.turns, thinking.variables(chat), is_markup)
            return Prompt.from_chat(located, self.turns, chat, thinking, needle=self.needles)
        prefix = "" if thinking.mode == "on" else self.answer_prefix
        return Prompt.from_document(
            self.document,
            self.question,
            template,
            needle=self.needles,
            needle_at=self.places,
            answer_prefix=prefix,
            thinking=thinking,
        )

    def told_facts(self) -> dict[str, Any]:
        """Return the facts as columns of a row; names in `RESERVED` get the prefix ``fact_``."""
        return {f"fact_{name}" if name in RESERVED else name: value for name, value in self.facts.items()}


def answer_room(least: int, answers: Sequence[str], count: Count) -> int:
    """Return the number of tokens to generate: at least `least`, and enough to list the answers."""
    return max(least, count(f" {', '.join(answers)}.") + 8)


class Task(ABC):
    """Base of all tasks; subclasses are frozen dataclasses, registered under a name.

    Attributes
    ----------
    name : str
        Name under which the task is registered.
    suite : str
        Benchmark that the task belongs to, whose tasks run together; empty for none.
    """

    name: ClassVar[str]
    suite: ClassVar[str] = ""

    @abstractmethod
    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make example number `index`, with a prompt of at most `tokens` tokens and little fewer.

        Parameters
        ----------
        index : int
            Not negative. The example depends on task, options, index and length alone.
        tokens : int
            Length of the whole prompt: document, question, answer prefix, and `MARKUP` for the template.
        count : callable
            Tokens of a text in the vocabulary of the model that answers.

        Raises
        ------
        ConfigError
            The length is too short for the task.
        """

    def example_id(self, index: int, tokens: int) -> str:
        """Return the id of an example, which differs between options of the task."""
        return f"{self.name}-{tokens}-{zlib.crc32(repr(self).encode()):08x}-{index}"

    def _made(
        self, index: int, tokens: int, texts: tuple[str, str, str], answers: Sequence[str], **more: Any
    ) -> Example:
        """Make an example from document, question and answer prefix (`texts`), answers, and further fields."""
        return Example(self.example_id(index, tokens), self.name, *texts, tuple(answers), tokens=tokens, **more)

    def rng(self, index: int, tokens: int) -> random.Random:
        """Return a random generator for one example, the same on every machine."""
        # The representation has the names of the class and of its fields, so renaming one changes all examples.
        return random.Random(f"{self!r} {index} {tokens}")


TASKS: Registry[Task] = Registry("task")


def register_task(name: str, suite: str = "") -> Callable[[type[Task]], type[Task]]:
    """Return a class decorator that registers a task, as part of a suite if given; both become class attributes."""

    def add(cls: type[Task]) -> type[Task]:
        cls.name, cls.suite = name, suite
        return TASKS.register(name)(cls)

    return add
