"""Build a command's options, help and call from its signature and the dataclasses that it takes."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from sp.commands.shell.outputs import CHECKS
from sp.config import REQUIRED, Field, Option, fields_of, from_text, option_of, type_text
from sp.errors import UsageError, known_names, short
from sp.keywords import present_name

METAVARS = {"whole number": "N", "number": "X", "text": "TEXT", "file": "FILE", "tokens": "TOKENS"}
HELP = ("-h", "--help")
FILE_FLAGS = ("-m", "--model", "--file")
"""Flags by which other programs and commands take the file that is a positional argument here."""
PLUGIN = Option("Python file or module with your own scorers, selectors, tasks, ...; repeatable.", ("--plugin",))
EXAMPLES = re.compile(r"^Examples?\n-+\n", re.M)


def opt(*flags: str, help: str = "", **more: Any) -> Option:
    """Return the annotation of a parameter that is an option of its command."""
    return Option(help, flags, **more)


def arg(help: str) -> Option:
    """Return the annotation of a parameter that is a positional argument."""
    return Option(help, argument=True)


class Adjusted:
    """Annotation of a dataclass parameter: a command omits some of its options, or gives them other defaults.

    `omit`: names of fields, separated by spaces, that are no options here and keep their defaults.
    """

    def __init__(self, omit: str = "", **defaults: Any) -> None:
        self.omit, self.defaults = omit.split(), defaults


@dataclass(frozen=True)
class CommandOption:
    """An option of a command: a field, its group in the help, and the names of the parameters that lead to it."""

    field: Field
    group: str
    path: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags on the command line; none for a positional argument."""
        flags = self.field.option.flags
        if self.field.option.argument:
            return ()
        return flags if any(flag.startswith("--") for flag in flags) else (*flags, f"--{self.name.replace('_', '-')}")

    @property
    def name(self) -> str:
        """Name of the field."""
        return self.field.name

    @property
    def dest(self) -> str:
        """Key of its value in the result of `Command.parse`."""
        return ".".join((*self.path, self.name))

    @property
    def kind(self) -> Any:
        """Its type, without None."""
        kinds = [kind for kind in get_args(self.field.hint) if kind is not NoneType]
        return kinds[0] if len(kinds) == 1 and NoneType in get_args(self.field.hint) else self.field.hint

    @property
    def switches(self) -> tuple[str, ...]:
        """``--no-`` flags of a boolean that is on or undecided by default."""
        if self.kind is not bool or self.field.value is False:
            return ()
        return tuple(f"--no-{flag[2:]}" for flag in self.flags if flag.startswith("--"))

    @property
    def many(self) -> bool:
        """True if it is repeatable."""
        return get_origin(self.kind) is list

    @property
    def needs_value(self) -> bool:
        """True if an empty text is an error."""
        return self.field.value != "" and not self.field.option.empty

    @property
    def default_text(self) -> str:
        """Its default for the help; empty if that would say nothing."""
        default = self.field.value
        if default in (None, REQUIRED, "", ()) or isinstance(default, bool):
            return ""
        return ",".join(map(str, default)) if isinstance(default, tuple) else str(self.field.default or default)

    @property
    def help(self) -> str:
        """Its description, with its default."""
        text = self.field.description
        return f"{text} [default: {self.default_text}]" if self.default_text else text


def options_of(function: Callable[..., Any]) -> list[CommandOption]:
    """Return the options of a command: its own, and those of the dataclasses among its parameters."""
    hints, options = get_type_hints(function, include_extras=True), list[CommandOption]()
    for name, parameter in inspect.signature(function).parameters.items():
        kind, option = option_of(hints[name])
        if is_dataclass(kind):
            options += _dataclass_options(kind, hints[name], (name,))  # type: ignore[arg-type]
            continue
        value = REQUIRED if parameter.default is parameter.empty else parameter.default
        default = None if value is REQUIRED else str(value)
        field = Field(name, type_text(kind), default, option.help, kind, option, value)
        options.append(CommandOption(field, "Options", ()))
    return options


def _dataclass_options(cls: type, hint: Any, path: tuple[str, ...]) -> Iterator[CommandOption]:
    """Yield the options of a dataclass, and of dataclasses in its fields."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    adjusted = next((mark for mark in marks if isinstance(mark, Adjusted)), Adjusted())
    hints = get_type_hints(cls, include_extras=True)
    for field in fields_of(cls):
        if not field.option.textual or field.name in adjusted.omit:
            continue
        if is_dataclass(field.hint):
            yield from _dataclass_options(field.hint, hints[field.name], (*path, field.name))  # type: ignore[arg-type]
        else:
            value = adjusted.defaults.get(field.name, field.value)
            default = field.default if value is field.value else str(value)
            field = replace(field, default=default, value=value)
            yield CommandOption(field, getattr(cls, "group", cls.__name__), path)


class _Switch(argparse.Action):
    def __call__(self, parser: Any, space: Any, values: Any, option_string: str | None = None) -> None:
        setattr(space, self.dest, not str(option_string).startswith("--no-"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(re.sub(r"^argument ([^:]+): expected .*", r"\1 needs a value", message))


@dataclass(frozen=True)
class Command:
    """A command: its words, such as ``sp bench ttft``, and the function that it calls.

    The function's docstring is the help; its parameters are options, or dataclasses of options.
    """

    words: str
    function: Callable[..., Any]

    @cached_property
    def options(self) -> list[CommandOption]:
        """All options, `--plugin` last."""
        plugin = Field("plugin", "text", None, PLUGIN.help, list[str] | None, PLUGIN, None)
        options = [*options_of(self.function), CommandOption(plugin, "Options", ())]
        flags = [flag for option in options for flag in (*option.flags, *option.switches)]
        assert len(set(flags)) == len(flags), f"{self.words}: a flag is declared twice: {sorted(flags)}"
        return options

    @property
    def file_argument(self) -> str:
        """Name of the positional argument that is one file; empty if there is none."""
        named = (o.name.upper() for o in self.options if o.field.option.argument and o.kind is Path)
        return next(named, "")

    @property
    def help(self) -> str:
        """The text of ``--help``: description, examples, and every option by group."""
        width = shutil.get_terminal_size((80, 24)).columns
        text, examples = self.help_parts
        parts = [part if part.startswith(" ") else fill(" ".join(part.split()), width) for part in text.split("\n\n")]
        described = "\n\n".join(parts)
        parser = self._parser(lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=width))
        options = parser.format_help().partition("\n")[2].strip("\n")
        arguments = " ".join(option.name.upper() for option in self.options if option.field.option.argument)
        lines = "".join(f"  {line}\n" for line in examples)
        head = f"Usage: {self.words} [OPTIONS] {arguments}".rstrip()
        return f"{head}\n\n{described}\n\n{'Examples:' if lines else ''}\n{lines}\n{options}\n"

    @property
    def help_parts(self) -> tuple[str, list[str]]:
        """The docstring up to its examples, and the examples, one per line."""
        text, *examples = EXAMPLES.split(inspect.getdoc(self.function) or "")
        return text.strip(), [line.strip() for line in "".join(examples).splitlines() if line.strip()]

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Parse arguments into values by `CommandOption.dest`; omitted options have their defaults.

        Raises
        ------
        ConfigError
            An option is unknown, has no value, or has one that it does not accept, such as a path that cannot be
            written.
        """
        parser = self._parser(argparse.HelpFormatter)
        space, more = parser.parse_known_intermixed_args(self._joined(argv))
        known = [flag for option in self.options for flag in (*option.flags, *option.switches)]
        for word in more:
            name = word.partition("=")[0]
            if word.startswith("-") and word != "-":
                if name in FILE_FLAGS and self.file_argument:
                    where = f"as in {self.words} {self.file_argument}"
                    raise UsageError(f"{self.words} has no option {name}: the file is given by itself, {where}")
                raise UsageError(f"{self.words} has no option {short(name)}{known_names(name, [*known, *HELP])}")
            raise UsageError(f"{self.words} takes no further argument {short(word)!r}")
        texts, values = vars(space), {}
        for option in self.options:
            label = next((flag for flag in option.flags if flag.startswith("--")), option.name.upper())
            # argparse stores None or [] for a positional argument that is missing.
            if option.dest not in texts or (option.field.option.argument and texts[option.dest] in (None, [])):
                if option.field.value is REQUIRED:
                    raise UsageError(f"{self.words} needs {label}: {option.field.description}")
                values[option.dest] = option.field.value
            elif option.kind is bool:
                values[option.dest] = texts[option.dest]
            elif option.needs_value and not all(text.strip(" ,") for text in _as_list(texts[option.dest])):
                raise UsageError(f"{label} is empty; give it a value, or omit it")
            elif option.many:
                item = get_args(option.kind)[0]
                values[option.dest] = [from_text(text, item, label) for text in texts[option.dest]]
            else:
                option.field.option.check(value := from_text(texts[option.dest], option.kind, label), label)
                values[option.dest] = value
            if (check := CHECKS.get(option.field.option.writes)) and values[option.dest] is not None:
                check(values[option.dest], label)
        return values

    def _joined(self, argv: Sequence[str]) -> list[str]:
        """Join each flag and its value into one word, so that a value may begin with a dash."""
        takes_value = {
            flag: option.flags[-1] for option in self.options for flag in option.flags if option.kind is not bool
        }
        words, joined = iter(argv), list[str]()
        for word in map(self._present, words):
            value = next(words, None) if word in takes_value else None
            joined.append(word if value is None else f"{takes_value[word]}={value}")
        return joined

    def _present(self, word: str) -> str:
        """Return an argument with the present name of its option in place of a former one; see `sp.keywords`."""
        if not word.startswith("--"):
            return word
        flag, equals, value = word.partition("=")
        names = [option.name for option in self.options if not option.field.option.argument]
        name = present_name(flag[2:].replace("-", "_"), names, lambda name: f"--{name.replace('_', '-')}")
        return f"--{name.replace('_', '-')}{equals}{value}" if name != flag[2:].replace("-", "_") else word

    def call(self, values: dict[str, Any]) -> Any:
        """Call the command with the result of `parse`; ConfigError for a value that a dataclass does not accept."""
        tree: dict[str, Any] = {}
        for option in self.options[:-1]:  # without --plugin, which no command takes itself
            branch = tree
            for name in option.path:
                branch = branch.setdefault(name, {})
            branch[option.name] = values[option.dest]
        hints = get_type_hints(self.function, include_extras=True)
        return self.function(**{name: _built(hints[name], value) for name, value in tree.items()})

    def _parser(self, formatter: Any) -> argparse.ArgumentParser:
        parser = _Parser(prog=self.words, usage="", add_help=False, allow_abbrev=False, formatter_class=formatter)
        groups: dict[str, Any] = {"Options": parser.add_argument_group("Options")}
        for option in self.options:
            title = "Arguments" if option.field.option.argument else option.group
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            group = groups[title]
            # argparse formats help texts with %; without SUPPRESS it would store its own defaults.
            more: dict[str, Any] = {"help": option.help.replace("%", "%%"), "default": argparse.SUPPRESS}
            if option.field.option.argument:
                required = option.field.value is REQUIRED
                more["nargs"] = ("+" if required else "*") if option.many else "?"
                group.add_argument(option.dest, metavar=option.name.upper(), **more)
            elif option.kind is bool:
                group.add_argument(*option.flags, *option.switches, dest=option.dest, action=_Switch, nargs=0, **more)
            else:
                action = "append" if option.many else "store"
                group.add_argument(*option.flags, dest=option.dest, action=action, metavar=_metavar(option), **more)
        groups["Options"].add_argument(
            *HELP, action="store_true", dest="help", default=False, help="Show this help and exit."
        )
        return parser


def _as_list(texts: str | list[str]) -> list[str]:
    """Return the texts of an option, which argparse stores as a list if it is repeatable."""
    return [texts] if isinstance(texts, str) else texts


def _built(hint: Any, value: Any) -> Any:
    """Return the value of a parameter; for a dataclass, build it from the values of its options."""
    cls, _ = option_of(hint)
    if not is_dataclass(cls):
        return value
    hints = get_type_hints(cls, include_extras=True)
    keywords = {
        field.name: _built(hints[field.name], value[field.name]) for field in fields(cls) if field.name in value
    }
    return cls(**keywords)  # type: ignore[operator]


def _metavar(option: CommandOption) -> str:
    """Return the placeholder for the value in the help.

    >>> hints = (int, Literal["a", "b"] | None)
    >>> [_metavar(CommandOption(Field("x", "", None, "", hint), "", ())) for hint in hints]
    ['N', 'a|b']
    """
    kind = get_args(option.kind)[0] if option.many or get_origin(option.kind) is tuple else option.kind
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return METAVARS.get(type_text(kind), "TEXT") + (",..." if get_origin(option.kind) is tuple else "")
