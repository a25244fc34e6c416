"""Options as dataclasses have them: name, type, default, and what the docstring says; read from text, and shown.

The command line, the keys of sweeps, the fields of requests and the pages are all made from this.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from contextlib import suppress
from dataclasses import MISSING
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sp.config import Option, Tokens, check_type, option_of
from sp.errors import ConfigError, short

REQUIRED: Any = ...
"""In place of a default."""
HEADING = re.compile(r"^(\w[\w ]*)\n-+$", re.M)
WORDS = {int: "whole number", float: "number", str: "text", bool: "true | false", Path: "file", NoneType: "null"}
ENTRY = re.compile(r"^(\w[\w, ]*)(?: : .*)?$")


@dataclasses.dataclass(frozen=True)
class Field:
    """One option.

    `option`: what else its annotation says.
    """

    name: str
    type: str
    default: str | None  # as it is written in YAML; None for an option that must be given
    told: str  # what the docstring says; empty where it says nothing
    hint: Any = None  # what it must be
    option: Option = Option()  # noqa: RUF009  nothing changes it
    value: Any = REQUIRED  # the default itself; `REQUIRED` if it must be given

    @property
    def shown(self) -> str:
        """Name and default, as in brackets behind the name of a strategy.

        Examples
        --------
        >>> Field("queries", "int", "8", "").shown, Field("path", "str", None, "").shown
        ('queries=8', 'path=...')
        """
        return f"{self.name}={'...' if self.default is None else self.default}"


def fields_of(cls: type) -> list[Field]:
    """The options of a dataclass, in the order of its class."""
    told, hints, found = _told(cls), get_type_hints(cls, include_extras=True), []
    for field in dataclasses.fields(cls):
        if field.init:
            hint, option = option_of(hints[field.name])
            value = field.default if field.default_factory is MISSING else field.default_factory()
            value = REQUIRED if value is MISSING else value
            default = None if value is REQUIRED else as_yaml(value)
            said = told.get(field.name, "")
            found.append(Field(field.name, type_shown(hint), default, said, hint, option, value))
    return found


def type_shown(hint: Any) -> str:
    """A type in words of the command line.

    >>> from typing import Literal
    >>> type_shown(Literal["max", "mean"] | None), type_shown(tuple[int, ...]), type_shown(bool)
    ('max | mean | null', 'list of whole number', 'true | false')
    """
    origin = get_origin(hint)
    if hint == Tokens:
        return "tokens"
    if origin is Annotated:
        return type_shown(option_of(hint)[0])
    if origin is Literal:
        return " | ".join(map(str, get_args(hint)))
    if origin in (Union, UnionType):
        return " | ".join(map(type_shown, get_args(hint)))
    if origin is tuple:
        return f"list of {type_shown(get_args(hint)[0])}"
    return "text" if hasattr(hint, "parse") else WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def summary_of(cls: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def as_yaml(value: object) -> str:
    """A default as people write it.

    >>> as_yaml(None), as_yaml(True), as_yaml("max"), as_yaml((1, 2)), as_yaml("")
    ('null', 'true', 'max', '[1, 2]', "''")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    text = str(value)
    return f"'{text}'" if text.lower() in ("", "on", "off", "yes", "no", "true", "false", "null") else text


def from_text(text: str, hint: Any, where: str) -> Any:
    """What a text says where a value of a type is wanted; strategies and others that are read later stay text.

    ConfigError: it says no such value; `where` it stands is told.
    """
    kind, option = option_of(hint)
    if get_origin(kind) in (Union, UnionType):
        *others, last = (one for one in get_args(kind) if one is not NoneType)
        for one in others:
            with suppress(ConfigError):
                return from_text(text, one, where)
        return from_text(text, last, where)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        try:
            value: Any = tuple(from_text(part.strip(), item, where) for part in text.split(",") if part.strip())
        except ConfigError as error:
            if item not in (int, float, Tokens):
                raise
            kinds = "numbers" if item is float else "whole numbers"
            example = "0.05,0.1" if item is float else "512,8k"
            told = f"{where} takes {kinds} with commas between them, such as {example}, not {short(repr(text))}"
            raise ConfigError(told if " must be at " not in str(error) else str(error)) from None
    elif kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            raise ConfigError(f"{where} must be a {WORDS[kind]}, not {short(repr(text))}") from None
    elif kind in (str, Tokens) or get_origin(kind) is Literal or hasattr(kind, "parse"):
        value = check_type(text, kind, where)
    else:
        value = Path(text) if kind is Path else text
    option.check(value, where)
    return value


def _told(cls: type) -> dict[str, str]:
    """Descriptions under `Parameters` of the docstrings of a class and of those it inherits from, its own first."""
    found: dict[str, str] = {}
    for each in cls.__mro__:
        parts = HEADING.split(inspect.cleandoc(each.__doc__ or ""))
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            for name, told in _entries(body).items() if title == "Parameters" else ():
                found.setdefault(name, told)
    return found


def _entries(body: str) -> dict[str, str]:
    """Descriptions by name, of a section in which several names may share one."""
    names: list[str] = []
    lines: dict[str, list[str]] = {}
    for line in body.splitlines():
        if (entry := ENTRY.match(line)) is not None:
            names = [name.strip() for name in entry[1].split(",")]
        for name in names if line.startswith(" ") else ():
            lines.setdefault(name, []).append(line.strip())
    return {name: " ".join(told) for name, told in lines.items()}
