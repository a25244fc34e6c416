"""Messages of a conversation, with calls of tools, and the forms in which chat templates take them."""

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
    """A message of a conversation.

    Attributes
    ----------
    role : str
    content : str
    reasoning : str
        Thinking before the content.
    calls : tuple of Call
        Calls after the content of an assistant's turn.
    call_id, name : str
        Of a tool's turn: the call that it answers, and the tool.
    """

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""

    @property
    def argument_text(self) -> str:
        """The strings in the arguments of all calls, concatenated."""
        return "".join(text for call in self.calls for text in strings(call.arguments))

    @property
    def call_names(self) -> str:
        """The names of all tools called, concatenated."""
        return "".join(call.name for call in self.calls)


class Form(NamedTuple):
    """A form of calls in templates: arguments as JSON text or as an object; empty content as None or as text."""

    as_text: bool = False
    none: bool = False


FORMS = (Form(), Form(as_text=True, none=True))
"""Objects, as transformers passes them and most templates expect; JSON text and no content, as DeepSeek-R1 expects."""


def message_of(turn: Turn, marks: Marks | None, form: Form = FORMS[0]) -> dict[str, Any]:
    """Return a turn as the mapping that a template takes.

    `marks`: how the template marks thinking; `form`: the form of calls.
    """
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
        history = marks.history if marks else "reasoning_content"  # where the template takes it
        if history == "thinking" and turn.calls and turn.content:
            pass  # the template takes either of them before a call, not both
        elif history == "blocks":
            thought = {"type": "thinking", "thinking": turn.reasoning}
            message["content"] = [thought, {"type": "text", "text": turn.content}] if turn.content else [thought]
        else:
            message[history] = turn.reasoning
    return message


def strings(value: Any) -> Iterator[str]:
    """Yield the strings among the values of plain data, in order; keys are omitted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def keys(value: Any) -> Iterator[str]:
    """Yield the keys in plain data."""
    if isinstance(value, Mapping):
        yield from value
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from keys(item)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with `change` applied to every string among its values, in order."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(item, change) for key, item in value.items()}
    return [changed(item, change) for item in value] if isinstance(value, list) else value
