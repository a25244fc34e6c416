"""What a transcript is: messages as chat APIs have them, and the questions that end its turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp.chat import Turn
from sp.evals.base import Count, Example, answer_room
from sp.prompt import DOCUMENT_MARK

Message = Mapping[str, Any]
"""``role`` and ``content``, a text; an assistant's may have ``tool_calls``, a tool's has ``tool_call_id``."""

TASK = "turns"
"""What rows call the task."""
CALL = "<tool_call>\n{}\n</tool_call>"
"""How a call is said in words, as Hermes and Qwen write one."""
TOOLS = "Tools:\n{}"


@dataclass(frozen=True)
class Place:
    """Characters ``[start, end)`` of the content of a message."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class Asked:
    """The question that ends a turn.

    Parameters
    ----------
    turn : int
        Counted from 0.
    kind, thread : str
        What is asked about, a name of `KINDS`; and of which facts, a name of `THREADS`.
    message : int
        The user's message that asks; the next one holds the right answer.
    answers : tuple of str
        What a right answer holds, all of it.
    evidence : tuple of Place
        What the answer rests on, in results of this turn or of those before it.
    results : tuple of int
        Turns whose results hold the evidence, ascending.
    stale : tuple of str
        What would have been right earlier on.
    words_match : bool
        Whether question and evidence name the same thing by the same rare word.
    """

    turn: int
    kind: str
    thread: str
    message: int
    question: str
    answers: tuple[str, ...]
    evidence: tuple[Place, ...]
    results: tuple[int, ...]
    stale: tuple[str, ...] = ()
    words_match: bool = False

    @property
    def age(self) -> int:
        """Turns since the oldest result that holds evidence."""
        return self.turn - min(self.results)


@dataclass(frozen=True)
class Transcript:
    """A conversation of an agent with its tools.

    `messages`: with the right answer at the end of every turn; `tools`: schemas, as ``tools`` of a chat API; `asked`:
    one a turn; `tokens`: length that was asked for.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    asked: tuple[Asked, ...]
    tokens: int

    def until(self, asked: Asked) -> tuple[Message, ...]:
        """What has been said when a question is to be answered; the answers before it are the right ones."""
        return self.messages[: asked.message + 1]

    def evidence(self, asked: Asked) -> tuple[str, ...]:
        """What an answer rests on, verbatim."""
        return tuple(self.messages[at.message]["content"][at.start : at.end] for at in asked.evidence)

    def shown(self, asked: Asked, layout: str = "chat") -> list[dict[str, str]]:
        """What a model is shown to answer a question: messages of role and content.

        `layout`, one of "chat", "plain": with ``plain`` one message of the user, its last paragraph the question.
        """
        messages = in_words(self.until(asked), self.tools)
        if layout == "chat":
            return messages
        return [{"role": "user", "content": f"{in_one(messages[:-1])}{DOCUMENT_MARK}{asked.question}"}]

    def example(self, asked: Asked, count: Count, layout: str = "chat") -> Example:
        """One question and all that was said before it, as a prompt with a known answer; layouts as in `shown`."""
        plain = layout == "plain"
        [*said, last] = self.shown(asked)
        return Example(
            id=f"{self.id}-{asked.turn}",
            task=TASK,
            document=in_one(said) if plain else "",
            question=last["content"] if plain else "",
            answer_prefix="",
            answers=asked.answers,
            needles=self.evidence(asked),
            facts={
                "transcript": self.id,
                "turn": asked.turn,
                "kind": asked.kind,
                "thread": asked.thread,
                "age": asked.age,
                "words_match": asked.words_match,
                "stale": list(asked.stale),
            },
            tokens=self.tokens,
            max_new_tokens=answer_room(8, asked.answers, count),
            turns=() if plain else tuple(Turn(one["role"], one["content"]) for one in (*said, last)),
        )


def in_one(messages: Sequence[Message]) -> str:
    """Messages as one text, each after its role.

    Examples
    --------
    >>> in_one([{"role": "user", "content": "Look."}, {"role": "tool", "content": "x = 1"}])
    'user: Look.\\n\\ntool: x = 1'
    """
    return "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)


def in_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[dict[str, str]]:
    """Messages of role and content alone: schemas stand in the system message, calls in the assistant's.

    For chat templates that show neither, the embedded pair's among them.

    Examples
    --------
    >>> call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 2}'}}
    >>> in_words([{"role": "assistant", "content": "", "tool_calls": [call]}], [])
    [{'role': 'assistant', 'content': '<tool_call>\\n{"name": "look", "arguments": {"at": 2}}\\n</tool_call>'}]
    """
    said = []
    for number, message in enumerate(messages):
        parts = [message["content"]]
        if number == 0 and tools and message["role"] == "system":
            parts.append(TOOLS.format("\n".join(map(signature, tools))))
        for call in message.get("tool_calls", ()):
            what = call["function"]
            told = {"name": what["name"], "arguments": json.loads(what["arguments"])}
            parts.append(CALL.format(json.dumps(told)))
        said.append({"role": message["role"], "content": "\n".join(part for part in parts if part)})
    return said


def signature(tool: Message) -> str:
    """A schema in a line.

    Examples
    --------
    >>> parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    >>> signature({"function": {"name": "read_file", "description": "Read a file.", "parameters": parameters}})
    'read_file(path): Read a file.'
    """
    what = tool["function"]
    return f"{what['name']}({', '.join(what['parameters']['properties'])}): {what['description']}"
