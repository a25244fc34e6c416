"""Options as dataclasses: checked, built from mappings, read from text, described; and registries of strategies.

The command line, the keys of sweep files, the fields of requests and the reference pages derive from them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING
from decimal import Decimal
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sp.errors import ConfigError, known_names, short, unknown_name
from sp.keywords import present_names
from sp.values import whole

T = TypeVar("T")

BIGGEST = 1 << 53  # of a numeric option; beyond it not every whole number is a float
UNDECODED = re.compile("[\ud800-\udfff]")  # surrogates, by which Python represents argument bytes that are not UTF-8

MOST_WHOLE = 1 << 1023  # whole numbers below it are in the range of a float

TOKENS = "tokens"
Tokens = Annotated[int, TOKENS]
"""Type of options that are numbers of tokens, which may be written as in ``8k``; see `token_count`."""
COUNT = re.compile(r"(\d{1,12})|(\d{1,9}(?:\.\d{1,6})?)([kKmM])", re.ASCII)
UNITS = {"k": 1 << 10, "m": 1 << 20}


@dataclasses.dataclass(frozen=True)
class Option:
    """Properties of an option besides its type, as its annotation has them.

    Attributes
    ----------
    help : str
        Description of a command's parameter; a field of a dataclass is described in the docstring of its class.
    flags : tuple of str
        Flags on the command line, if they differ from ``--name``.
    least, most : float, optional
        Bounds of a number, included.
    argument : bool
        On the command line it is positional.
    fixed : bool
        A request to a server cannot change it.
    empty : bool
        Of a list: an empty text is an empty list, not an error.
    textual : bool
        It can be read from text; False if only Python can set it.
    writes : {"", "file", "folder"}
        Of a path on the command line: what will be written there, so that it is checked before any work.
    """

    help: str = ""
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    argument: bool = False
    fixed: bool = False
    empty: bool = False
    textual: bool = True
    writes: Literal["", "file", "folder"] = ""

    def check(self, value: object, where: str) -> None:
        """Raise ConfigError for a number that is out of bounds."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        for word, bound, wrong in (
            # `not value >= least`, as NaN compares false with everything and has to be refused
            ("least", self.least, self.least is not None and not value >= self.least),
            ("most", self.most, self.most is not None and not value <= self.most),
        ):
            if wrong:
                raise ConfigError(f"{where} must be at {word} {bound:,}, not {value}")


def option_of(hint: Any) -> tuple[Any, Option]:
    """Split an annotation into its type and its `Option`; `Tokens` stays annotated."""
    if get_origin(hint) is not Annotated:
        return hint, Option()
    kind, *marks = get_args(hint)
    option = next((mark for mark in marks if isinstance(mark, Option)), Option())
    return Tokens if TOKENS in marks else kind, option


# cached: resolving the hints takes longer than all checks
_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def token_count(text: str, where: str) -> int:
    """Read a number of tokens such as ``8k``: ``k`` stands for 1,024, ``m`` for 1,048,576; ConfigError otherwise."""
    match = COUNT.fullmatch(text.strip())
    # Decimal, so that 0.1m is recognised as not whole; 0.5 is the result for other texts, and an error below.
    count = Decimal(match[1] or match[2]) * UNITS.get((match[3] or "").lower(), 1) if match else Decimal("0.5")
    if count != int(count):
        raise ConfigError(f"{where} is a number of tokens such as 512, 8k or 1m, not {short(repr(text))}")
    return int(count)


def check_type(value: object, expected: Any, where: str) -> Any:
    """Return `value` if it has the annotated type, with int taken for float; raise ConfigError otherwise."""
    origin = get_origin(expected)
    if expected is Any:
        return value
    if origin is Annotated:
        kind, *marks = get_args(expected)
        if isinstance(value, str) and TOKENS in marks:
            value = token_count(value, where)
        checked = check_type(value, kind, where)
        option_of(expected)[1].check(checked, where)
        return checked
    if origin is typing.Literal:
        value = ("on" if value else "off") if isinstance(value, bool) else value  # YAML reads on and off as booleans
        if value in get_args(expected):
            return value
        choices = [str(choice) for choice in get_args(expected)]
        raise ConfigError(f"{where} is {short(repr(value))}{known_names(str(value), choices)}")
    if origin in (typing.Union, types.UnionType):
        if type(value) in get_args(expected):
            return value
        choices = [choice for choice in get_args(expected) if choice is not type(None)]
        if len(choices) == 1:  # its own message is more precise than that of the union
            return check_type(value, choices[0], where)
        for choice in get_args(expected):
            try:
                return check_type(value, choice, where)
            except ConfigError:
                continue
    elif hasattr(expected, "parse") and (value is False or (isinstance(value, str) and type(value) is not expected)):
        return expected.parse("off" if value is False else value, where)  # YAML reads a bare off as false
    elif origin in (tuple, list):
        if isinstance(value, (list, tuple)):
            return tuple(check_type(item, get_args(expected)[0], where) for item in value)
    elif expected is float and (number := whole(value)) is not None and abs(number) < MOST_WHOLE:
        return float(number)
    elif expected is None or expected is type(None):
        if value is None:
            return value
    elif isinstance(value, expected) and (expected is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where} must be {_in_words(expected)}, not {short(repr(value))}")


def _in_words(expected: Any) -> str:
    """Describe a type for messages."""
    if get_origin(expected) is Literal:
        return ", ".join(map(str, get_args(expected)))
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_in_words(choice) for choice in get_args(expected) if choice is not type(None))
    if get_origin(expected) in (tuple, list):
        return f"a list of {_in_words(get_args(expected)[0])}"
    return "str" if hasattr(expected, "parse") else getattr(expected, "__name__", str(expected))


def from_mapping(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """Build a dataclass from a mapping.

    Parameters
    ----------
    cls : type
        A dataclass. Its `__post_init__` may check ranges and raise ConfigError.
    values : mapping
        Values by field name, as read from YAML.
    where : str
        Subject of messages, such as ``"scorer tail"``.

    Raises
    ------
    ConfigError
        A key is unknown (the nearest names are offered), a type is wrong, or a required field is missing.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints, checked = _hints(cls), {}
    values = present_names(getattr(cls, "renamed", dict)(values), fields)  # `renamed` of scorers: former options
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
    """Raise ConfigError unless every field of a dataclass instance has its annotated type; for `__post_init__`.

    A number of tokens that is written as text is replaced by the number.

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
    for field in dataclasses.fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, field.name)
        checked = check_type(value, hints[field.name], f"{where}: {field.name}")
        if checked is not value:
            object.__setattr__(instance, field.name, checked)  # frozen


def import_modules(package: str) -> tuple[ModuleType, ...]:
    """Import every module of a package and of its subpackages, so that their strategies are registered.

    `package`: dotted name. Returns the modules, without packages, sorted by name.
    """
    modules = walk_packages(import_module(package).__path__, f"{package}.")
    return tuple(import_module(name) for name in sorted(module.name for module in modules if not module.ispkg))


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


class Registry(Generic[T]):
    """Classes of strategies by name; an instance is built for every run.

    The modules of the package `home` register their own classes. They are imported when a name is first looked up, or
    when a module outside of `home` registers a class.
    """

    def __init__(self, kind: str, home: str = "") -> None:
        self.kind, self._home = kind, home
        self._classes: dict[str, type[T]] = {}

    def _known(self) -> dict[str, type[T]]:
        if self._home:
            import_modules(self._home)
            self._home = ""  # not before: until then another thread has to wait for the same imports
        return self._classes

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that registers a dataclass under `name`."""

        def add(cls: type[T]) -> type[T]:
            if not cls.__module__.startswith(f"{self._home}."):
                self._known()
            known = self._classes.get(name, cls)
            if known is not cls and _place(known) == _place(cls):  # a notebook cell or an edited file ran again
                del self._classes[name]
            if name in self._classes:
                where = known.__module__
                raise ConfigError(f"{self.kind} {name!r} is registered twice, first by {where}; choose another name")
            self._classes[name] = cls
            return cls

        return add

    def build(self, name: str, options: Mapping[str, object] | None = None) -> T:
        """Build the strategy called `name` with its options; ConfigError if either is unknown."""
        return from_mapping(self.class_of(name), options or {}, f"{self.kind} {name}")

    def class_of(self, name: str) -> type[T]:
        """Return the class registered under `name`; ConfigError if there is none."""
        if name not in self._known():
            raise unknown_name(self.kind, name, self._classes)
        return self._classes[name]

    def name_of(self, strategy: T) -> str:
        """Return the name under which a strategy is registered; that of its class if it is not."""
        kind = type(strategy)
        return next((name for name, known in self._classes.items() if known is kind), kind.__name__)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known()))


REQUIRED: Any = ...  # in place of a default
HEADING = re.compile(r"^(\w[\w ]*)\n-+$", re.M)
WORDS = {int: "whole number", float: "number", str: "text", bool: "true | false", Path: "file", NoneType: "null"}
ENTRY = re.compile(r"^(\w[\w, ]*)(?: : .*)?$")


@dataclasses.dataclass(frozen=True)
class Field:
    """Describe one option.

    Attributes
    ----------
    name : str
    type : str
        Its type in words; see `type_text`.
    default : str, optional
        Default as YAML; None for a required option.
    description : str
        Text of the docstring; empty if there is none.
    hint : Any
        Its type.
    option : Option
        Properties from its annotation.
    value : Any
        The default itself; `REQUIRED` for a required option.
    """

    name: str
    type: str
    default: str | None
    description: str
    hint: Any = None
    option: Option = Option()
    value: Any = REQUIRED

    @property
    def assignment(self) -> str:
        """Name and default, as in the brackets after the name of a strategy: ``queries=24``."""
        return f"{self.name}={'...' if self.default is None else self.default}"


def fields_of(cls: type) -> list[Field]:
    """Return the options of a dataclass, in the order of its class."""
    descriptions, hints, options = _descriptions(cls), get_type_hints(cls, include_extras=True), []
    for field in dataclasses.fields(cls):
        if field.init:
            hint, option = option_of(hints[field.name])
            value = field.default if field.default_factory is MISSING else field.default_factory()
            value = REQUIRED if value is MISSING else value
            default = None if value is REQUIRED else as_yaml(value)
            text = descriptions.get(field.name, "")
            options.append(Field(field.name, type_text(hint), default, text, hint, option, value))
    return options


def type_text(hint: Any) -> str:
    """Describe a type in words of the command line.

    >>> type_text(Literal["max", "mean"] | None), type_text(tuple[int, ...]), type_text(bool)
    ('max | mean | null', 'list of whole number', 'true | false')
    """
    origin = get_origin(hint)
    if hint == Tokens:
        return "tokens"
    if origin is Annotated:
        return type_text(option_of(hint)[0])
    if origin is Literal:
        return " | ".join(map(str, get_args(hint)))
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, get_args(hint)))
    if origin is tuple:
        return f"list of {type_text(get_args(hint)[0])}"
    return "text" if hasattr(hint, "parse") else WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def summary_of(cls: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def as_yaml(value: object) -> str:
    """Format a default as YAML.

    >>> as_yaml(None), as_yaml(True), as_yaml("max"), as_yaml((1, 2)), as_yaml("")
    ('null', 'true', 'max', '[1, 2]', "''")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    text = str(value)  # YAML would read these words as booleans or null
    return f"'{text}'" if text.lower() in ("", "on", "off", "yes", "no", "true", "false", "null") else text


def from_text(text: str, hint: Any, where: str) -> Any:
    """Read a value of a type from text. Strategies and other objects that are built later stay text.

    `where`: option or field, for messages. ConfigError if the text is no such value.
    """
    kind, option = option_of(hint)
    if get_origin(kind) in (Union, UnionType):
        *others, last = (choice for choice in get_args(kind) if choice is not NoneType)
        for choice in others:
            with suppress(ConfigError):
                return from_text(text, choice, where)
        return from_text(text, last, where)  # whose message is that of the union
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        try:
            value: Any = tuple(from_text(part.strip(), item, where) for part in text.split(",") if part.strip())
        except ConfigError as error:
            if (item := option_of(item)[0]) not in (int, float, Tokens):
                raise
            kinds = "numbers" if item is float else "whole numbers"
            example = "0.05,0.1" if item is float else "512,8k"
            expected = f"{where} takes {kinds}, comma-separated, such as {example}, not {short(repr(text))}"
            raise ConfigError(expected if " must be at " not in str(error) else str(error)) from None
    elif kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            raise ConfigError(f"{where} must be a {WORDS[kind]}, not {short(repr(text))}") from None
        if not abs(value) < float("inf"):
            raise ConfigError(f"{where} must be a finite number, not {short(repr(text))}")
        if abs(value) > BIGGEST:
            raise ConfigError(f"{where} must be at most {BIGGEST:,}, not {short(repr(text))}")
    elif kind in (str, Tokens) or get_origin(kind) is Literal or hasattr(kind, "parse"):
        if kind is str and UNDECODED.search(text):
            raise ConfigError(f"{where} is not UTF-8 text: {short(repr(text))}; encode it as UTF-8")
        value = check_type(text, kind, where)
    else:
        value = Path(text) if kind is Path else text
    option.check(value, where)
    return value


def _descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of parameters from the docstrings of a class and its bases, its own first."""
    descriptions: dict[str, str] = {}
    for base in cls.__mro__:
        # The split alternates between the titles of sections and their bodies.
        parts = HEADING.split(inspect.cleandoc(base.__doc__ or ""))
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            for name, text in _entries(body).items() if title == "Parameters" else ():
                descriptions.setdefault(name, text)
    return descriptions


def _entries(body: str) -> dict[str, str]:
    """Return descriptions by name of a docstring's section, in which several names may share one."""
    names: list[str] = []
    lines: dict[str, list[str]] = {}
    for line in body.splitlines():
        if (entry := ENTRY.match(line)) is not None:
            names = [name.strip() for name in entry[1].split(",")]
        for name in names if line.startswith(" ") else ():
            lines.setdefault(name, []).append(line.strip())
    return {name: " ".join(texts) for name, texts in lines.items()}
