"""Messages as OpenAI's clients write them, checked: who speaks, what is said, and that there is nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.errors import PromptError

MAX_NAME = 64
BIGGEST = 1 << 53  # what JSON readers agree on
ROLES = ("system", "developer", "user", "assistant", "tool")
OWN: Mapping[str, tuple[str, ...]] = {
    "assistant": ("reasoning_content", "reasoning", "tool_calls"),
    "tool": ("tool_call_id",),
}
"""Fields of a message beside role, content and name, by its role."""


class FieldError(PromptError):
    """A value of plain data is wrong. `param`: the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def shown(value: Any) -> str:
    """A value for an error: numbers and short strings as they are, else the JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > BIGGEST:
        return f"a number of {len(str(abs(value)))} digits"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_NAME else f"string of {len(value)} characters"
    return "list" if isinstance(value, list) else "object"


def text_of(given: Any, where: str) -> str:
    """A string that UTF-8 can write, or FieldError."""
    if not isinstance(given, str):
        raise FieldError(f"{where} is {shown(given)}; send a string", where)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise FieldError(f"{where} has a lone surrogate at character {error.start}; send UTF-8 text", where) from None
    return given


def known_role(role: Any, where: str) -> str:
    """A role as templates know it; FieldError for none.

    >>> known_role("developer", "messages[0]")
    'system'
    >>> known_role("usr", "messages[0]")
    Traceback (most recent call last):
    sp.chat.messages.FieldError: messages[0].role is 'usr'; use one of system, developer, user, assistant, tool
    """
    if role not in ROLES:
        raise FieldError(f"{where}.role is {shown(role)}; use one of {', '.join(ROLES)}", f"{where}.role")
    return "system" if role == "developer" else str(role)


def role_of(given: Any, where: str, ignored: list[str] | None = None) -> str:
    """Who says a message. FieldError for what is none, and for fields that it cannot have. `ignored`: hears of unknown
    fields; without it they are refused.
    """
    if not isinstance(given, Mapping):
        raise FieldError(f"{where} is a {shown(given)}; send an object with role and content", where)
    role = known_role(given.get("role"), where)
    for name, value in given.items():
        if name in ("role", "content", "name", *OWN.get(role, ())) or value in (None, []):
            continue
        place = f"{where}.{name[:MAX_NAME]}"
        what = "not supported" if name in ("function_call", "audio", "tool_calls") else "unknown"
        if what == "unknown" and ignored is not None:
            ignored.append(f"{place}: unknown field")
            continue
        raise FieldError(f"{place} is {what}; send the turn's text as content", place)
    return role


def thought_of(given: Mapping[str, Any], where: str) -> str:
    """What an assistant's message says of its thinking."""
    name = "reasoning" if given.get("reasoning_content") is None else "reasoning_content"
    thought = given.get(name)
    return "" if thought is None else text_of(thought, f"{where}.{name}")


def parts_of(given: Mapping[str, Any], where: str, *, spoken: bool = False) -> list[str]:
    """What a message says, part by part; FieldError for what is no text. `spoken`: it says something besides, so that
    the content may be missing.
    """
    content = "" if spoken and given.get("content") in (None, []) else given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise FieldError(f"{place} is no text; the models read text only", place)
        texts.append(text_of(part.get("text"), place))
    if not texts:
        raise FieldError(f"{where}.content is empty; leave the message out", f"{where}.content")
    return texts
