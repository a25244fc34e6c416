"""Strict construction of options from YAML or the command line, and the registries strategies live in."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from sp.errors import ConfigError, known_names, short, unknown_name

T = TypeVar("T")

MOST_WHOLE = 1 << 1023
"""Whole numbers below it are within what a float can hold."""

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)  # working them out takes longer than all checks


def check_type(value: object, expected: Any, where: str) -> Any:
    """Return `value` if it has the annotated type, with int taken for float; raise ConfigError otherwise."""
    origin = get_origin(expected)
    if expected is Any:
        return value
    if origin is typing.Literal:
        if value in get_args(expected):
            return value
        choices = [str(choice) for choice in get_args(expected)]
        raise ConfigError(f"{where} is {short(repr(value))}{known_names(str(value), choices)}")
    if origin in (typing.Union, types.UnionType):
        choices = [each for each in get_args(expected) if each is not type(None)]
        if len(choices) == 1 and value is not None:
            return check_type(value, choices[0], where)
        for choice in get_args(expected):
            try:
                return check_type(value, choice, where)
            except ConfigError:
                continue
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(check_type(item, get_args(expected)[0], where) for item in value)
    elif expected is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_WHOLE:
        return float(value)
    elif expected is None or expected is type(None):
        if value is None:
            return value
    elif isinstance(value, expected) and (expected is bool or not isinstance(value, bool)):
        return value
    shown = getattr(expected, "__name__", str(expected))
    raise ConfigError(f"{where} must be {shown}, not {short(repr(value))}")


def from_mapping(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """Build the dataclass `cls` from a mapping; unknown keys and wrong types are errors.

    Parameters
    ----------
    cls : type
        A dataclass. Its `__post_init__` may check ranges and raise ConfigError.
    values : mapping
        Field names to values, as read from YAML.
    where : str
        What the mapping configures, for messages (``"scorer tail"``).

    Raises
    ------
    ConfigError
        For an unknown key (nearest names offered), a wrong type or a missing required field.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Pool:
    ...     width: int = 13
    >>> from_mapping(Pool, {"width": 5}, "pool")
    Pool(width=5)
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = _hints(cls)
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown_name(f"option of {where}", key, fields)
        checked[key] = check_type(value, hints[key], f"{where}: {key}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in checked:
            raise ConfigError(f"{where}: {name} is required")
    return cls(**checked)


def check_fields(instance: object, where: str) -> None:
    """ConfigError unless every field of a dataclass instance has its annotated type; for use in `__post_init__`.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Pool:
    ...     mode: typing.Literal["max", "mean"] = "max"
    ...     def __post_init__(self) -> None:
    ...         check_fields(self, "pool")
    >>> Pool("men")
    Traceback (most recent call last):
    sp.errors.ConfigError: pool: mode is 'men'; did you mean 'mean'? Known: max, mean
    """
    hints = _hints(type(instance))
    for each in dataclasses.fields(instance):  # type: ignore[arg-type]
        check_type(getattr(instance, each.name), hints[each.name], f"{where}: {each.name}")


def import_modules(package: str) -> tuple[ModuleType, ...]:
    """Import every module of a package and of the packages inside it, so that what they register is registered.

    Parameters
    ----------
    package : str
        Dotted name; of a package that is being imported, its own ``__name__``.

    Returns
    -------
    tuple of module
        Sorted by name; packages are not among them.

    Examples
    --------
    >>> "sp.selection.top_chunks" in [module.__name__ for module in import_modules("sp.selection")]
    True
    """
    found = walk_packages(import_module(package).__path__, f"{package}.")
    return tuple(import_module(name) for name in sorted(each.name for each in found if not each.ispkg))


class Registry(Generic[T]):
    """Names of strategies, each bound to a class that is built fresh for every run.

    Examples
    --------
    >>> shapes: Registry[object] = Registry("shape")
    >>> @shapes.register("dot")
    ... @dataclasses.dataclass(frozen=True)
    ... class Dot:
    ...     size: int = 1
    >>> shapes.build("dot", {"size": 3})
    Dot(size=3)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that files a dataclass under `name`."""

        def add(cls: type[T]) -> type[T]:
            if name in self._classes:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._classes[name] = cls
            return cls

        return add

    def build(self, name: str, options: Mapping[str, object] | None = None) -> T:
        """Make the strategy called `name` with its options; ConfigError if either is unknown."""
        return from_mapping(self.class_of(name), options or {}, f"{self.kind} {name}")

    def class_of(self, name: str) -> type[T]:
        """The class filed under `name`; ConfigError if there is none."""
        if name not in self._classes:
            raise unknown_name(self.kind, name, self._classes)
        return self._classes[name]

    def name_of(self, strategy: T) -> str:
        """Name a strategy is filed under; that of its class if it is not."""
        kind = type(strategy)
        return next((name for name, known in self._classes.items() if known is kind), kind.__name__)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))
