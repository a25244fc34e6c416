"""Fields of a JSON object from a file, checked where they are read: by name, with what each must be.

Errors name the place and the field, and say what the value is, never the value itself, which may be long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sp import values
from sp.errors import ConfigError, short

LONGEST = 1000
"""Characters of a text that goes into a table."""
BIGGEST = 1e15
"""Of a number that is calculated with."""


@dataclass(frozen=True)
class Wanted:
    """What a field must be.

    `words`: for messages, e.g. ``"a number"``.
    """

    words: str
    fits: Callable[[Any], bool]
    required: bool = True  # whether it must be there; if not, null will do as well

    @property
    def optional(self) -> Wanted:
        """The same of a field that may be missing, or null."""
        return Wanted(self.words, self.fits, required=False)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of use; true and false are none."""
    return (found := values.whole(value)) is not None and abs(found) <= BIGGEST


def is_number(value: object) -> bool:
    """Whether a value is a finite number of use."""
    return (found := values.real(value)) is not None and abs(found) <= BIGGEST


def is_text(value: object) -> bool:
    """Whether a value is a text that is not too long for a table; what shows it must still escape it."""
    return isinstance(value, str) and len(value) <= LONGEST


def number(low: float = -BIGGEST, high: float = BIGGEST) -> Wanted:
    """A number in a range, ends included."""
    bounds = "" if low == -BIGGEST else f" of at least {low:g}" if high == BIGGEST else f" from {low:g} to {high:g}"
    return Wanted(f"a number{bounds}", lambda value: is_number(value) and low <= value <= high)


def whole(low: int = 0) -> Wanted:
    """A whole number of at least so much."""
    return Wanted(f"a whole number of at least {low}", lambda value: is_whole(value) and value >= low)


TEXT = Wanted(f"a text of at most {LONGEST} characters", is_text)
LIST = Wanted("a list", lambda value: isinstance(value, list))
OBJECT = Wanted("an object", lambda value: isinstance(value, dict))
ATOM = Wanted(
    "a text, a number, true or false", lambda value: isinstance(value, bool) or is_number(value) or is_text(value)
)


def kind_of(value: object) -> str:
    """What a value is, for an error; the value itself is for `sp.values.shown`."""
    kinds = {bool: "true or false", list: "a list", dict: "an object", type(None): "missing"}
    if isinstance(value, str):
        return "another text" if value.strip() else "an empty one"
    return kinds.get(type(value), "a number")


def check(given: Mapping[str, Any], wanted: Mapping[str, Wanted], where: str) -> None:
    """ConfigError for the first field that is not what it must be; other fields are passed over."""
    for name, want in wanted.items():
        value = given.get(name)
        if value is None and not want.required:
            continue
        if not want.fits(value):
            kind = kind_of(value)
            told = "another number" if kind == "a number" and "number" in want.words else kind
            raise ConfigError(f"{where}: {short(name)} must be {want.words}, not {told}")


def check_each(given: Mapping[str, Any], want: Wanted, where: str) -> None:
    """The same of every field of an object.

    >>> check_each({"a": 1, "b": None}, number(), "x.jsonl, line 2: stages")
    Traceback (most recent call last):
    sp.errors.ConfigError: x.jsonl, line 2: stages: b must be a number, not missing
    """
    for name in given:
        if not is_text(name):
            raise ConfigError(f"{where}: a name must be {TEXT.words}")
        check(given, {name: want}, where)
