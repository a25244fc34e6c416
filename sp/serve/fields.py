"""Single values of a request body: of the type and in the range they must have, and as errors show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.serve.errors import RequestError

MAX_NAME = 64
BIGGEST = 1 << 53  # what JSON readers agree on


def text_of(given: Any, where: str) -> str:
    """A string that UTF-8 can write, or RequestError."""
    if not isinstance(given, str):
        raise RequestError(f"{where} is {shown(given)}; send a string", where)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} has a lone surrogate at character {error.start}; send UTF-8 text", where) from None
    return given


def typed(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str) -> Any:
    """The value of a field, None if it was left out; RequestError unless it is of one of the kinds."""
    value = body.get(name)
    if not isinstance(value, kinds):
        raise RequestError(f"{name} is {shown(value)}; send {expected}", name)
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int, *, whole: bool = False) -> Any:
    """A number from `low` to `high`, None if it was left out; RequestError for any other value."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} is {shown(value)}; send {kind} from {low} to {high}", name)
    return value


def like(neutral: Any) -> tuple[type, ...]:
    """Types in which a neutral value may come: JSON writes 0 and 0.0, but false is no number."""
    return (int, float) if type(neutral) is int else (type(neutral),)


def shown(value: Any) -> str:
    """A value for an error: numbers and short strings as they are, else the JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_NAME else f"string of {len(value)} characters"
    return "list" if isinstance(value, list) else "object"
