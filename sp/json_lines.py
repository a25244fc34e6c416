"""JSON of files and fields that nobody vouches for: read within limits, and checked field by field.

Errors name the place and the field, and say what the value is, never the value itself, which may be long.

What Python's own reader lets through and later code would trip over is refused here: half surrogate pairs, numbers of
hundreds of digits, nesting without end. NaN and the infinities, which are no JSON, are read as null.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp import values
from sp.errors import ConfigError, short

LONGEST = 1000  # characters of a text that goes into a table
BIGGEST = 1e15  # of a number that is calculated with


@dataclass(frozen=True)
class Wanted:
    """What a field must be. `words`: for messages, e.g. ``"a number"``."""

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


LONGEST_LINE = 1 << 27  # bytes of a line; the longest prompts of MRCR v2, of 8M tokens, have some 40 MB
DEEPEST = 64
BIGGEST_WHOLE = 1 << 63  # of a whole number

LONG_NUMBER = re.compile(rb"\d{19}|[eE]\+?\d{3}")
HALF = re.compile(rb"\\u[dD][89a-fA-F]")
HALVES = re.compile("[\ud800-\udfff]")


def decoded(raw: bytes, where: str) -> str:
    """Text of UTF-8 bytes, without a mark of byte order; ConfigError if they are none."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (byte {error.start}); convert it first") from None


def parse_json(raw: bytes, where: str) -> Any:
    """The JSON value of some bytes; ConfigError for anything else. Texts may have half surrogate pairs."""
    text = decoded(raw, where)
    try:
        if LONG_NUMBER.search(raw):
            value = json.loads(text, parse_constant=_unknown, parse_int=_whole, parse_float=_finite)
        else:
            value = json.loads(text, parse_constant=_unknown)
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply; write plain records") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not a JSON object ({error.msg} at character {error.pos})") from None
    except ValueError:
        raise ConfigError(f"{where}: not a JSON object that can be read (a number is too long)") from None
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:
        _check_depth(value, where)
    return value


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object of some bytes, all its texts whole; ConfigError for anything else."""
    value = parse_json(raw, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not a JSON object")
    if HALF.search(raw) and HALVES.search(json.dumps(value, ensure_ascii=False)):
        raise ConfigError(f"{where}: half a surrogate pair; write whole characters")
    return value


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The one JSON object of a file; `what` to name instead of a file that cannot be read (``"a map of heads"``)."""
    return parse_object(b"".join(_raw_lines(path, what)), str(path))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSON-lines file, first line first. ConfigError: the file cannot be read, or a line is no JSON
    object.
    """
    for number, raw in enumerate(_raw_lines(path, "a file of records"), 1):
        yield parse_object(raw, f"{path}, line {number}")


def _raw_lines(path: Path, what: str) -> Iterator[bytes]:
    """Lines without their ends, those that are empty at the end left out."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"cannot read {path}: not a file; name {what}")
    try:
        with path.open("rb") as file:
            blank = 0
            while raw := file.readline(LONGEST_LINE + 1):
                if len(raw) > LONGEST_LINE:
                    raise ConfigError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB; name {what}")
                if raw == b"\n":
                    blank += 1
                    continue
                yield from [b""] * blank
                blank = 0
                yield raw.removesuffix(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name {what}") from None


def _unknown(name: str) -> None:
    """NaN and the infinities."""


def _whole(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > BIGGEST_WHOLE:
        raise ValueError
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _check_depth(value: Any, where: str) -> None:
    """ConfigError if lists and objects stand in each other deeper than `DEEPEST`, found without recursion."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        inside = (each for one in level for each in (one.values() if isinstance(one, dict) else one))
        level = [each for each in inside if isinstance(each, dict | list)]
    if level:
        raise ConfigError(f"{where}: nested more than {DEEPEST} deep; write plain records")
