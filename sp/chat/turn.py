"""A message of a conversation, with the calls of tools in it, and the forms in which chat templates take it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sp.chat.reasoning import Marks


@dataclass(frozen=True)
class Call:
    """A call of a tool: its name, its arguments by name, and the id that its result refers to."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def json(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Turn:
    """A message: who says it, what, and what was thought before.

    `calls`: of an assistant's turn, behind the content; `call_id`, `name`: of a tool's turn: the call that it answers,
    and the tool.
    """

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""

    @property
    def argument_text(self) -> str:
        """The strings in the arguments of all calls, end to end."""
        return "".join(text for call in self.calls for text in strings(call.arguments))

    @property
    def call_names(self) -> str:
        """The names of all that is called, end to end."""
        return "".join(call.name for call in self.calls)


class Form(NamedTuple):
    """How a template wants calls: the arguments as JSON text, or as an object; a turn without content as none."""

    as_text: bool = False
    none: bool = False


FORMS = (Form(), Form(as_text=True, none=True))
"""Objects, as transformers hands them over and most templates expect; text and no content, as DeepSeek's R1 does."""


def message_of(turn: Turn, marks: Marks | None, form: Form = FORMS[0]) -> dict[str, Any]:
    """A turn as the template takes it. `marks`: how the template marks thinking; `form`: how it takes calls."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        message["content"] = None if form.none and not turn.content else turn.content
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.json if form.as_text else dict(call.arguments)},
            }
            for call in turn.calls
        ]
    message |= {key: value for key, value in (("tool_call_id", turn.call_id), ("name", turn.name)) if value}
    if turn.reasoning:
        way = marks.history if marks else "reasoning_content"
        if way == "thinking" and turn.calls and turn.content:
            pass  # the template takes either before a call
        elif way == "blocks":
            thought = {"type": "thinking", "thinking": turn.reasoning}
            message["content"] = [thought, {"type": "text", "text": turn.content}] if turn.content else [thought]
        else:
            message[way] = turn.reasoning
    return message


def strings(value: Any) -> Iterator[str]:
    """The strings among the values of plain data, in the order they stand; not the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def keys(value: Any) -> Iterator[str]:
    """The keys in plain data."""
    if isinstance(value, Mapping):
        yield from value
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from keys(each)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every string among its values changed, in the same order."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(each, change) for key, each in value.items()}
    return [changed(each, change) for each in value] if isinstance(value, list) else value
