"""JSON from strangers: objects that every JSON reader takes back, or nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MOST_DEPTH = 64
"""Of nested lists and objects; templates and our own code walk down them."""


def read_json(text: str) -> Any:
    """The value that a text spells.

    ValueError for no JSON, and for what other readers refuse: values that are no number, surrogates alone, nesting
    beyond `MOST_DEPTH`.
    """
    value, end = read_first(text)
    if text[end:].strip():
        raise ValueError("there is more than one value")
    return value


def read_object(text: str) -> dict[str, Any] | None:
    """The object that a whole text spells; None for anything else, and for what `read_json` refuses."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_first(text: str) -> tuple[Any, int]:
    """The value with which a text begins, after white space, and where it ends; ValueError as `read_json`.

    >>> read_first(' {"a": 1}; more')
    ({'a': 1}, 9)
    """
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not shallow(value):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
    json.dumps(value, ensure_ascii=False).encode()
    return value, end


def shallow(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether plain data is nested at most so deep."""
    level = [value]
    for _ in range(depth + 1):
        inner = [each for each in level if isinstance(each, Mapping | list)]
        if not inner:
            return True
        level = [item for each in inner for item in (each.values() if isinstance(each, Mapping) else each)]
    return False


def _real(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_real, parse_constant=_constant)
