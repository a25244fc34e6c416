"""From the signature of a command, and the dataclasses it takes, to its options, its help, and a call of it."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from textwrap import fill
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from sp.config import REQUIRED, Field, Option, fields_of, from_text, option_of, type_shown
from sp.errors import UsageError, known_names, short
from sp.keywords import present_name

METAVARS = {"whole number": "N", "number": "X", "text": "TEXT", "file": "FILE", "tokens": "TOKENS"}
HELP = ("-h", "--help")
PLUGIN = Option("Python file or module with scorers, selectors, tasks, ... of your own; repeatable.", ("--plugin",))
EXAMPLES = re.compile(r"^Examples?\n-+\n", re.M)


def opt(*flags: str, help: str = "", **more: Any) -> Option:
    """An option of a command, as the annotation of its parameter has it."""
    return Option(help, flags, **more)


def arg(help: str) -> Option:
    """An argument of a command by its place."""
    return Option(help, argument=True)


class Part:
    """How a command takes the options of a dataclass: without some of them, or with other defaults. `without`: names of
    fields with spaces between them, which keep their defaults."""

    def __init__(self, without: str = "", **defaults: Any) -> None:
        self.without, self.defaults = without.split(), defaults


@dataclass(frozen=True)
class Entry:
    """An option of a command: a field, the group of the help it stands in, and the parameters on the way to it."""

    field: Field
    group: str
    path: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """As they are written; none of an argument."""
        given = self.field.option.flags
        if self.field.option.argument:
            return ()
        return given if any(flag.startswith("--") for flag in given) else (*given, f"--{self.name.replace('_', '-')}")

    @property
    def name(self) -> str:
        """Of the field."""
        return self.field.name

    @property
    def dest(self) -> str:
        """Where the parser puts it."""
        return ".".join((*self.path, self.name))

    @property
    def kind(self) -> Any:
        """Its type; of one that may be left out, what it is otherwise."""
        kinds = [one for one in get_args(self.field.hint) if one is not NoneType]
        return kinds[0] if len(kinds) == 1 and NoneType in get_args(self.field.hint) else self.field.hint

    @property
    def switches(self) -> tuple[str, ...]:
        """Flags that switch it off, of one that is on or undecided without any."""
        if self.kind is not bool or self.field.value is False:
            return ()
        return tuple(f"--no-{flag[2:]}" for flag in self.flags if flag.startswith("--"))

    @property
    def many(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(self.kind) is list

    @property
    def needs_value(self) -> bool:
        """Whether a text that says nothing is none of its values."""
        return self.field.value != "" and not self.field.option.empty

    @property
    def shown(self) -> str:
        """Its default as it is written; empty where that says nothing."""
        default = self.field.value
        if default in (None, REQUIRED, "", ()) or isinstance(default, bool):
            return ""
        return ",".join(map(str, default)) if isinstance(default, tuple) else str(self.field.default or default)

    @property
    def help(self) -> str:
        """What is said of it, with its default."""
        return f"{self.field.told} [default: {self.shown}]" if self.shown else self.field.told


def entries_of(function: Callable[..., Any]) -> list[Entry]:
    """The options of a command: its own, and those of the dataclasses among its parameters."""
    hints, found = get_type_hints(function, include_extras=True), list[Entry]()
    for name, parameter in inspect.signature(function).parameters.items():
        kind, option = option_of(hints[name])
        if is_dataclass(kind):
            found += _inside(kind, hints[name], (name,))  # type: ignore[arg-type]
            continue
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        shown = None if default is REQUIRED else str(default)
        found.append(Entry(Field(name, type_shown(kind), shown, option.help, kind, option, default), "Options", ()))
    return found


def _inside(cls: type, hint: Any, path: tuple[str, ...]) -> Iterator[Entry]:
    """Options of a dataclass, and of dataclasses in its fields."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    part = next((mark for mark in marks if isinstance(mark, Part)), Part())
    hints = get_type_hints(cls, include_extras=True)
    for one in fields_of(cls):
        if is_dataclass(one.hint) and one.option.written and one.name not in part.without:
            yield from _inside(one.hint, hints[one.name], (*path, one.name))  # type: ignore[arg-type]
        elif one.option.written and one.name not in part.without:
            value = part.defaults.get(one.name, one.value)
            shown = one.default if value is one.value else str(value)
            held = Field(one.name, one.type, shown, one.told, one.hint, one.option, value)
            yield Entry(held, getattr(cls, "group", cls.__name__), path)


class _Switch(argparse.Action):
    def __call__(self, parser: Any, space: Any, values: Any, option_string: str | None = None) -> None:
        setattr(space, self.dest, not str(option_string).startswith("--no-"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(re.sub(r"^argument ([^:]+): expected .*", r"\1 needs a value", message))


@dataclass(frozen=True)
class Command:
    """A command, its words, and what it calls."""

    words: str  # `sp bench ttft`
    function: Callable[..., Any]  # its docstring is the help; its parameters are options, or dataclasses of them

    @cached_property
    def entries(self) -> list[Entry]:
        """All options, `--plugin` last."""
        plugin = Field("plugin", "text", None, PLUGIN.help, list[str] | None, PLUGIN, None)
        found = [*entries_of(self.function), Entry(plugin, "Options", ())]
        names = [flag for one in found for flag in (*one.flags, *one.switches)]
        assert len(set(names)) == len(names), f"{self.words}: a flag twice: {sorted(names)}"
        return found

    @property
    def help(self) -> str:
        """What the docstring says, the examples, and every option by group."""
        width = shutil.get_terminal_size((80, 24)).columns
        text, examples = self.told
        parts = [part if part.startswith(" ") else fill(" ".join(part.split()), width) for part in text.split("\n\n")]
        described = "\n\n".join(parts)
        parser = self._parser(lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=width))
        options = parser.format_help().partition("\n")[2].strip("\n")
        asked = " ".join(one.name.upper() for one in self.entries if one.field.option.argument)
        lines = "".join(f"  {line}\n" for line in examples)
        head = f"Usage: {self.words} [OPTIONS] {asked}".rstrip()
        return f"{head}\n\n{described}\n\n{'Examples:' if lines else ''}\n{lines}\n{options}\n"

    @property
    def told(self) -> tuple[str, list[str]]:
        """The docstring up to its examples, and these."""
        text, *examples = EXAMPLES.split(inspect.getdoc(self.function) or "")
        return text.strip(), [line.strip() for line in "".join(examples).splitlines() if line.strip()]

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """What the options say, by `Entry.dest`; those that are not given have their defaults. ConfigError for an
        option that there is not, one without its value, or a value that it cannot have."""
        parser = self._parser(argparse.HelpFormatter)
        space, more = parser.parse_known_intermixed_args(self._joined(argv))
        known = [flag for one in self.entries for flag in (*one.flags, *one.switches)]
        for word in more:
            name = word.partition("=")[0]
            if word.startswith("-") and word != "-":
                raise UsageError(f"{self.words} has no option {short(name)}{known_names(name, [*known, *HELP])}")
            raise UsageError(f"{self.words} takes no further argument {short(word)!r}")
        given, found = vars(space), {}
        for one in self.entries:
            label = next((flag for flag in one.flags if flag.startswith("--")), one.name.upper())
            if one.dest not in given or (one.field.option.argument and given[one.dest] in (None, [])):
                if one.field.value is REQUIRED:
                    raise UsageError(f"{self.words} needs {label}: {one.field.told}")
                found[one.dest] = one.field.value
            elif one.kind is bool:
                found[one.dest] = given[one.dest]
            elif one.needs_value and not all(text.strip(" ,") for text in _texts(given[one.dest])):
                raise UsageError(f"{label} is empty; give it a value, or leave it out")
            elif one.many:
                found[one.dest] = [from_text(text, get_args(one.kind)[0], label) for text in given[one.dest]]
            else:
                one.field.option.check(value := from_text(given[one.dest], one.kind, label), label)
                found[one.dest] = value
        return found

    def _joined(self, argv: Sequence[str]) -> list[str]:
        """Arguments with each flag and its value as one word: what follows a flag is its value, dash or not."""
        takes = {flag: one.flags[-1] for one in self.entries for flag in one.flags if one.kind is not bool}
        words, found = iter(argv), list[str]()
        for word in map(self._present, words):
            value = next(words, None) if word in takes else None
            found.append(word if value is None else f"{takes[word]}={value}")
        return found

    def _present(self, word: str) -> str:
        """Return an argument, with the present name of an option in place of its former one; see `sp.keywords`."""
        if not word.startswith("--"):
            return word
        flag, equals, value = word.partition("=")
        names = [one.name for one in self.entries if not one.field.option.argument]
        name = present_name(flag[2:].replace("-", "_"), names, lambda name: f"--{name.replace('_', '-')}")
        return f"--{name.replace('_', '-')}{equals}{value}" if name != flag[2:].replace("-", "_") else word

    def call(self, found: dict[str, Any]) -> Any:
        """Call the command with what `parse` found; ConfigError for what a dataclass does not take."""
        tree: dict[str, Any] = {}
        for one in self.entries[:-1]:
            at = tree
            for name in one.path:
                at = at.setdefault(name, {})
            at[one.name] = found[one.dest]
        hints = get_type_hints(self.function, include_extras=True)
        return self.function(**{name: _made(hints[name], value) for name, value in tree.items()})

    def _parser(self, formatter: Any) -> argparse.ArgumentParser:
        parser = _Parser(prog=self.words, usage="", add_help=False, allow_abbrev=False, formatter_class=formatter)
        groups: dict[str, Any] = {"Options": parser.add_argument_group("Options")}
        for one in self.entries:
            title = "Arguments" if one.field.option.argument else one.group
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            into = groups[title]
            more: dict[str, Any] = {"help": one.help.replace("%", "%%"), "default": argparse.SUPPRESS}
            if one.field.option.argument:
                more["nargs"] = (
                    ("*" if one.many else "?") if one.field.value is not REQUIRED else "+" if one.many else "?"
                )
                into.add_argument(one.dest, metavar=one.name.upper(), **more)
            elif one.kind is bool:
                into.add_argument(*one.flags, *one.switches, dest=one.dest, action=_Switch, nargs=0, **more)
            else:
                action = "append" if one.many else "store"
                into.add_argument(*one.flags, dest=one.dest, action=action, metavar=_metavar(one), **more)
        groups["Options"].add_argument(
            *HELP, action="store_true", dest="help", default=False, help="Show this and exit."
        )
        return parser


def _texts(given: str | list[str]) -> list[str]:
    """What was written for an option that may be given several times, or once."""
    return [given] if isinstance(given, str) else given


def _made(hint: Any, value: Any) -> Any:
    """A value of a parameter; of a dataclass, that with the fields that were given and are there for text."""
    cls, _ = option_of(hint)
    if not is_dataclass(cls):
        return value
    hints = get_type_hints(cls, include_extras=True)
    given = {one.name: _made(hints[one.name], value[one.name]) for one in fields(cls) if one.name in value}
    return cls(**given)  # type: ignore[operator]


def _metavar(one: Entry) -> str:
    """What stands for the value in the help.

    >>> [_metavar(Entry(Field("x", "", None, "", hint), "", ())) for hint in (int, Literal["a", "b"] | None)]
    ['N', 'a|b']
    """
    kind = get_args(one.kind)[0] if one.many or get_origin(one.kind) is tuple else one.kind
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return METAVARS.get(type_shown(kind), "TEXT") + (",..." if get_origin(one.kind) is tuple else "")
