"""Validation of messages in the format of OpenAI's API: role, content, and no unknown fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.errors import PromptError

MAX_NAME = 64
BIGGEST = 1 << 53  # beyond it integers are not exact in JSON readers that use doubles
ROLES = ("system", "developer", "user", "assistant", "tool")
OWN: Mapping[str, tuple[str, ...]] = {
    "assistant": ("reasoning_content", "reasoning", "tool_calls"),
    "tool": ("tool_call_id",),
}
"""Further fields of a message besides role, content and name, by its role."""


class FieldError(PromptError):
    """A value of plain data is invalid. `param`: the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def describe_value(value: Any) -> str:
    """Describe a value for an error message: numbers and short strings as they are, otherwise the JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > BIGGEST:
        return f"a number of {len(str(abs(value)))} digits"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_NAME else f"string of {len(value)} characters"
    return "list" if isinstance(value, list) else "object"


def text_of(value: Any, where: str) -> str:
    """Return a string that can be encoded as UTF-8; FieldError for anything else."""
    if not isinstance(value, str):
        raise FieldError(f"{where} is {describe_value(value)}; send a string", where)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(f"{where} has a lone surrogate at character {error.start}; send UTF-8 text", where) from None
    return value


def known_role(role: Any, where: str) -> str:
    """Return a role as templates know it; FieldError for an unknown one.

    >>> known_role("developer", "messages[0]")
    'system'
    >>> known_role("usr", "messages[0]")
    Traceback (most recent call last):
    sp.chat.messages.FieldError: messages[0].role is 'usr'; use one of system, developer, user, assistant, tool
    """
    if role not in ROLES:
        raise FieldError(f"{where}.role is {describe_value(role)}; use one of {', '.join(ROLES)}", f"{where}.role")
    return "system" if role == "developer" else str(role)


def role_of(message: Any, where: str, ignored: list[str] | None = None) -> str:
    """Return the role of a message; FieldError for an invalid message and for fields that it cannot have.

    `ignored`: collects unknown fields; without it they are refused.
    """
    if not isinstance(message, Mapping):
        raise FieldError(f"{where} is a {describe_value(message)}; send an object with role and content", where)
    role = known_role(message.get("role"), where)
    for name, value in message.items():
        # Empty fields are as good as none.
        if name in ("role", "content", "name", *OWN.get(role, ())) or value in (None, []):
            continue
        place = f"{where}.{name[:MAX_NAME]}"
        problem = "not supported" if name in ("function_call", "audio", "tool_calls") else "unknown"
        if problem == "unknown" and ignored is not None:
            ignored.append(f"{place}: unknown field")
            continue
        raise FieldError(f"{place} is {problem}; send the turn's text as content", place)
    return role


def thought_of(message: Mapping[str, Any], where: str) -> str:
    """Return the reasoning in an assistant's message."""
    name = "reasoning" if message.get("reasoning_content") is None else "reasoning_content"
    thought = message.get(name)
    return "" if thought is None else text_of(thought, f"{where}.{name}")


def parts_of(message: Mapping[str, Any], where: str, *, spoken: bool = False) -> list[str]:
    """Return the text parts of a message; FieldError for other content.

    `spoken`: the message has calls or reasoning as well, so that the content may be missing.
    """
    content = "" if spoken and message.get("content") in (None, []) else message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise FieldError(f"{place} is not text; send parts of type text, the models read nothing else", place)
        texts.append(text_of(part.get("text"), place))
    if not texts:
        raise FieldError(f"{where}.content is empty; omit the message", f"{where}.content")
    return texts
