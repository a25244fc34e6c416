"""The options of a dataclass as people write them, each with what its docstring says of it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sp.config import TOKENS

HEADING = re.compile(r"^(\w[\w ]*)\n-+$", re.M)
WORDS = {int: "whole number", float: "number", str: "text", bool: "true | false", Path: "file", NoneType: "null"}
ENTRY = re.compile(r"^(\w[\w, ]*)(?: : .*)?$")


@dataclasses.dataclass(frozen=True)
class Field:
    """One option.

    Parameters
    ----------
    name, type : str
    default : str or None
        As it is written in YAML; None for an option that must be given.
    told : str
        What the docstring says; empty where it says nothing.
    """

    name: str
    type: str
    default: str | None
    told: str

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
    """The options of a strategy, in the order of its class.

    Examples
    --------
    >>> from sp.scoring import SCORERS
    >>> [(one.shown, one.told[:20]) for one in fields_of(SCORERS.class_of("random"))]
    [('run=32', 'Tokens that share on')]
    """
    told, hints = _told(cls), get_type_hints(cls, include_extras=True)
    return [
        Field(field.name, type_shown(hints[field.name]), _default(field), told.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.init
    ]


def type_shown(hint: Any) -> str:
    """A type in words of the command line.

    Examples
    --------
    >>> from typing import Literal
    >>> type_shown(Literal["max", "mean"] | None), type_shown(tuple[int, ...]), type_shown(bool)
    ('max | mean | null', 'list of whole number', 'true | false')
    """
    origin = get_origin(hint)
    if origin is Annotated and TOKENS in get_args(hint):
        return "tokens"
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

    Examples
    --------
    >>> as_yaml(None), as_yaml(True), as_yaml("max"), as_yaml((1, 2)), as_yaml("")
    ('null', 'true', 'max', '[1, 2]', "''")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    return str(value) if value != "" else "''"


def _default(field: dataclasses.Field[Any]) -> str | None:
    if field.default is not dataclasses.MISSING:
        return as_yaml(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return as_yaml(field.default_factory())
    return None


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
