"""What scripts of several clients ask for."""

from __future__ import annotations

from collections.abc import Callable

SCHEMA = {
    "title": "found",
    "type": "object",
    "properties": {"kind": {"enum": ["fact", "story"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city.", "parameters": CITY},
}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def refused(kind: type[Exception], ask: Callable[[], object]) -> str:
    """What a request was refused with, as the client tells it."""
    try:
        ask()
    except kind as error:
        return str(error)
    raise AssertionError("it was answered")
