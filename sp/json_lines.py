"""JSON of untrusted files, read within limits and checked field by field.

Errors name the place, the field and the kind of its value, never the value itself, which may be long.

Some texts that Python's reader accepts are errors here, as later code would fail on them: half surrogate pairs, numbers
of hundreds of digits, unlimited nesting. NaN and the infinities, which are not JSON, are read as null.
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
BIGGEST = 1e15  # of a number that enters a calculation


@dataclass(frozen=True)
class FieldType:
    """Type of a field.

    Attributes
    ----------
    words : str
        Name for messages, such as ``"a number"``.
    fits : callable
        True for a value of the type.
    required : bool
        The field must exist; otherwise it may be missing, or null.
    """

    words: str
    fits: Callable[[Any], bool]
    required: bool = True

    @property
    def optional(self) -> FieldType:
        """The same type for a field that may be missing, or null."""
        return FieldType(self.words, self.fits, required=False)


def is_whole(value: object) -> bool:
    """Return True for a whole number of at most `BIGGEST`; a bool is none."""
    return (number := values.whole(value)) is not None and abs(number) <= BIGGEST


def is_number(value: object) -> bool:
    """Return True for a finite number of at most `BIGGEST`; a bool is none."""
    return (number := values.real(value)) is not None and abs(number) <= BIGGEST


def is_text(value: object) -> bool:
    """Return True for a text that is short enough for a table; it still has to be escaped there."""
    return isinstance(value, str) and len(value) <= LONGEST


def number(low: float = -BIGGEST, high: float = BIGGEST) -> FieldType:
    """Return the type of numbers in a range, bounds included."""
    bounds = "" if low == -BIGGEST else f" of at least {low:g}" if high == BIGGEST else f" from {low:g} to {high:g}"
    return FieldType(f"a number{bounds}", lambda value: is_number(value) and low <= value <= high)


def whole(low: int = 0) -> FieldType:
    """Return the type of whole numbers of at least `low`."""
    return FieldType(f"a whole number of at least {low}", lambda value: is_whole(value) and value >= low)


TEXT = FieldType(f"a text of at most {LONGEST} characters", is_text)
LIST = FieldType("a list", lambda value: isinstance(value, list))
OBJECT = FieldType("an object", lambda value: isinstance(value, dict))
ATOM = FieldType(
    "a text, a number, true or false", lambda value: isinstance(value, bool) or is_number(value) or is_text(value)
)


def kind_of(value: object) -> str:
    """Return the kind of a value for an error; `sp.values.preview` shows the value itself."""
    kinds = {bool: "true or false", list: "a list", dict: "an object", type(None): "missing"}
    if isinstance(value, str):
        return "another text" if value.strip() else "an empty one"
    return kinds.get(type(value), "a number")


def check(record: Mapping[str, Any], types: Mapping[str, FieldType], where: str) -> None:
    """Raise ConfigError for the first field that has another type than in `types`; other fields are ignored."""
    for name, expected in types.items():
        value = record.get(name)
        if value is None and not expected.required:
            continue
        if not expected.fits(value):
            kind = kind_of(value)
            kind = "another number" if kind == "a number" and "number" in expected.words else kind
            raise ConfigError(f"{where}: {short(name)} must be {expected.words}, not {kind}")


def check_each(record: Mapping[str, Any], expected: FieldType, where: str) -> None:
    """Raise ConfigError for the first field of an object that has another type than `expected`.

    >>> check_each({"a": 1, "b": None}, number(), "x.jsonl, line 2: stages")
    Traceback (most recent call last):
    sp.errors.ConfigError: x.jsonl, line 2: stages: b must be a number, not missing
    """
    for name in record:
        if not is_text(name):
            raise ConfigError(f"{where}: a name must be {TEXT.words}")
        check(record, {name: expected}, where)


LONGEST_LINE = 1 << 27  # bytes of a line; the longest prompts of MRCR v2, with 8M tokens, have some 40 MB
DEEPEST = 64
BIGGEST_WHOLE = 1 << 63  # of a whole number

LONG_NUMBER = re.compile(rb"\d{19}|[eE]\+?\d{3}")  # may be beyond int64 or the range of floats
HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # escape of a surrogate
HALVES = re.compile("[\ud800-\udfff]")


def decoded(raw: bytes, where: str) -> str:
    """Decode UTF-8 bytes, without a byte order mark; ConfigError if they are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text (byte {error.start}); convert it first") from None


def parse_json(raw: bytes, where: str) -> Any:
    """Parse a JSON value; ConfigError for anything else. Texts may have half surrogate pairs."""
    text = decoded(raw, where)
    try:
        if LONG_NUMBER.search(raw):  # the checking hooks turn off the fast parser for numbers
            value = json.loads(text, parse_constant=_unknown, parse_int=_whole, parse_float=_finite)
        else:
            value = json.loads(text, parse_constant=_unknown)
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply; use flat records") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not a JSON object ({error.msg} at character {error.pos})") from None
    except ValueError:
        raise ConfigError(f"{where}: not a readable JSON object (a number is too long)") from None
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:
        _check_depth(value, where)
    return value


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object without half surrogate pairs; ConfigError for anything else."""
    value = parse_json(raw, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not a JSON object")
    if HALF.search(raw) and HALVES.search(json.dumps(value, ensure_ascii=False)):
        raise ConfigError(f"{where}: half a surrogate pair; write whole characters")
    return value


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """Read the JSON object of a file; `expected`: content of the file, for messages, such as ``"a map of heads"``."""
    return parse_object(b"".join(_raw_lines(path, expected)), str(path))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file; ConfigError if it cannot be read, or a line is no JSON object."""
    for number, raw in enumerate(_raw_lines(path, "a file of records"), 1):
        yield parse_object(raw, f"{path}, line {number}")


def _raw_lines(path: Path, expected: str) -> Iterator[bytes]:
    """Yield lines without their line feeds, and without empty lines at the end of the file."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"cannot read {path}: not a file; name {expected}")
    try:
        with path.open("rb") as file:
            blank = 0
            while raw := file.readline(LONGEST_LINE + 1):
                if len(raw) > LONGEST_LINE:
                    raise ConfigError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB; name {expected}")
                if raw == b"\n":
                    blank += 1
                    continue
                yield from [b""] * blank
                blank = 0
                yield raw.removesuffix(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name {expected}") from None


def _unknown(name: str) -> None:
    """Read NaN and the infinities as null."""


def _whole(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > BIGGEST_WHOLE:
        raise ValueError
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _check_depth(value: Any, where: str) -> None:
    """Raise ConfigError if lists and objects are nested more than `DEEPEST` deep."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):  # level by level, as recursion would reach Python's limit
        items = (item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent))
        level = [item for item in items if isinstance(item, dict | list)]
    if level:
        raise ConfigError(f"{where}: nested more than {DEEPEST} deep; use flat records")
