"""What a task is: a frozen dataclass that makes the i-th example of a given length, always the same one.

Examples name their evidence, so that a selection can be judged by what it kept and not only by the answer.
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
from sp.evals.matches import Match as Match  # tasks name it beside what else they need of here
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import Prompt

Count = Callable[[str], int]  # tokens of a text in the vocabulary that prompts are measured in
WITHOUT = Thinking("off")  # how examples are asked: the answers are short, and known without thinking
TASK_SLOT = "{task}"
"""In an option of a scorer, the registered name of the task it is run on: weights that never saw it, for one."""
RESERVED = ("schema", "kind", "run", "models", "options")
"""What files of records say of a line, in place of which no fact of an example may stand."""
MARKUP = 16  # tokens left free for the chat template around a prompt's text


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
        What a right answer holds.
    needles : tuple of str
        Every sentence of the document that the answer rests on, verbatim; empty where the whole text counts.
    match : str
        How the answer is judged by these answers: a name of `sp.evals.matches.MATCHES`.
    facts : dict
        What varies between examples and belongs in the record: depth, phrasing, keys.
    tokens : int
        Length that was asked for.
    max_new_tokens : int
        Longest answer.
    places : tuple of int
        Character of the document at which each needle begins; where it first occurs if left out.
    turns : tuple of Turn
        A whole conversation in place of document and question. All but the last turn of the user may be left out.

    Raises
    ------
    ConfigError
        For a way to judge that nobody knows.
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
        """The rendered prompt, every needle marked; an answer that begins with thinking gets no prefix.

        Parameters
        ----------
        tokenizer : Tokenizer, optional
            Tells what of a conversation spells markup.

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
            found = render_located(chat, self.turns, thinking.variables(chat), is_markup)
            return Prompt.from_chat(found, self.turns, chat, thinking, needle=self.needles)
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
        """The facts as columns of a row; those in `RESERVED` begin with ``fact_``."""
        return {f"fact_{name}" if name in RESERVED else name: value for name, value in self.facts.items()}


def answer_room(least: int, answers: Sequence[str], count: Count) -> int:
    """Tokens to generate: at least `least`, and enough to list the answers in a vocabulary of short tokens."""
    return max(least, count(f" {', '.join(answers)}.") + 8)


class Task(ABC):
    """Base of all tasks; subclasses are frozen dataclasses, registered under a name.

    Attributes
    ----------
    name : str
        What it is registered under.
    suite : str
        The benchmark it belongs to, which runs as a whole; empty for none.
    """

    name: ClassVar[str]
    suite: ClassVar[str] = ""

    @abstractmethod
    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Example number `index`, its prompt at most `tokens` tokens and little shorter.

        Parameters
        ----------
        index : int
            Not negative. Task, options, index and length alone decide what is drawn.
        tokens : int
            Length of the whole prompt: document, question, answer prefix, and `MARKUP` for the template.
        count : callable
            Tokens of a text in the vocabulary of the model that answers.

        Raises
        ------
        ConfigError
            If the length has no room for the task.
        """

    def example_id(self, index: int, tokens: int) -> str:
        """Name of an example, another one for other options of the task."""
        return f"{self.name}-{tokens}-{zlib.crc32(repr(self).encode()):08x}-{index}"

    def _made(
        self, index: int, tokens: int, texts: tuple[str, str, str], answers: Sequence[str], **more: Any
    ) -> Example:
        """An example of document, question, how the answer begins, the answers, and what else it has."""
        return Example(self.example_id(index, tokens), self.name, *texts, tuple(answers), tokens=tokens, **more)

    def rng(self, index: int, tokens: int) -> random.Random:
        """A generator of this example alone, the same on every machine."""
        return random.Random(f"{self!r} {index} {tokens}")


TASKS: Registry[Task] = Registry("task")


def register_task(name: str, suite: str = "") -> Callable[[type[Task]], type[Task]]:
    """Class decorator that files a task under `name`, as part of a suite if it is; both become attributes of it."""

    def add(cls: type[Task]) -> type[Task]:
        cls.name, cls.suite = name, suite
        return TASKS.register(name)(cls)

    return add
