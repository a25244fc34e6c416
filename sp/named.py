"""Strategies by name with options in brackets, such as ``tail[queries=24]``, and YAML of plain values.

Plain values are text, whole numbers, finite numbers, true, false and null, in lists and mappings. YAML 1.1's dates and
numbers of base 60 (``2026-11-22``, ``1:30``) are text here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import yaml

from sp.config import Registry
from sp.errors import ConfigError, join_names, short

MOST_BYTES = 1 << 18
MOST_VALUES = 20_000  # of one file; a value counts once for every alias of it
DEEPEST = 32
BIGGEST = (1 << 63) - 1  # of a whole number

TAG = "tag:yaml.org,2002:"
MAPPING, SEQUENCE = TAG + "map", TAG + "seq"
PLAIN = tuple(TAG + name for name in ("str", "int", "float", "bool", "null"))
INT = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)  # numbers of YAML 1.1 (yaml.org/type) without those of base 60


class PlainLoader(yaml.SafeLoader):
    """Compose YAML nodes within limits of number and depth; use `compose`."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in known if tag in (TAG + "bool", TAG + "null")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        self.depth = self.values = 0
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node unless that would exceed a limit; overrides `yaml.composer.Composer`."""
        self.depth, self.values = self.depth + 1, self.values + 1
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=mark)
        if self.values > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_VALUES:,} values", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


PlainLoader.add_implicit_resolver(TAG + "int", INT, list("-+0123456789"))
PlainLoader.add_implicit_resolver(TAG + "float", FLOAT, list("-+0123456789."))


def compose(text: str, name: str, numbered: bool = True) -> tuple[PlainLoader, yaml.Node]:
    """Return the node of a YAML text, and its loader.

    `name`: subject of messages; `numbered`: messages contain the line. ConfigError if the text is empty, is not YAML,
    or exceeds a limit.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{name} has more than {MOST_BYTES >> 10} KiB, the limit for YAML; shorten it")

    def line(number: int) -> str:
        return f", line {number}" if numbered else ""

    loader: PlainLoader | None = None
    try:
        loader = PlainLoader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        where = line(error.problem_mark.line + 1) if error.problem_mark else ""
        raise ConfigError(f"{name}{where}: not YAML ({short(error.problem or error.context)})") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}{line(number)}: not YAML (a character that is not allowed)") from None
    except (yaml.YAMLError, ValueError, OverflowError):  # numbers of directives and of escapes
        number = loader.line + 1 if loader else 1
        raise ConfigError(f"{name}{line(number)}: not YAML (an invalid number)") from None
    if node is None:
        raise ConfigError(f"{name} is empty")
    return loader, node


def scalar(loader: PlainLoader, node: yaml.Node, where: str) -> Any:
    """Return the plain value of a node; ConfigError if it is none."""
    if not isinstance(node, yaml.ScalarNode) and node.tag in (MAPPING, SEQUENCE):
        raise ConfigError(f"{where}: a list or mapping stands where a text or a number is expected")
    if node.tag not in PLAIN:
        tag = short(node.tag.replace(TAG, "!!"))
        raise ConfigError(f"{where}: {tag} is not supported; write text, a number, true, false or null")
    text: str = node.value
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{where}: half a surrogate pair; write whole characters")
    if node.tag == PLAIN[0]:
        return text
    resolved = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    try:
        if resolved != node.tag or len(text) > 100:  # an explicit tag on another kind of text, or an endless number
            raise ValueError
        value = loader.construct_object(node)
    except ValueError:
        raise ConfigError(f"{where}: {short(text)} cannot be read as {node.tag.removeprefix(TAG)}") from None
    if (isinstance(value, int) and abs(value) > BIGGEST) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{where}: {short(text)} is beyond the range of numbers here; use a smaller one")
    return value


def read_value(text: str, where: str) -> Any:
    """Read a plain value of a setting: a scalar, or lists and mappings of scalars."""
    if not text.strip():
        return None
    loader, node = compose(text, where, numbered=False)
    budget = MOST_VALUES

    def plain(node: yaml.Node, depth: int) -> Any:
        nonlocal budget
        budget -= 1
        # The loader counts an aliased node once; nested aliases may expand to billions of values.
        if budget < 0 or depth > DEEPEST:
            raise ConfigError(f"{where}: aliases expand to too many values; write the values out")
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
            return [plain(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
            return {str(scalar(loader, key, where)): plain(value, depth + 1) for key, value in node.value}
        return scalar(loader, node, where)

    return plain(node, 0)


T = TypeVar("T")

ITEM = re.compile(r"(?P<name>[^,\[\]]+?)\s*(?:\[(?P<options>[^\]]*)\])?\s*(?:,|$)")
NEXT_OPTION = re.compile(r",[a-z_]+=")
"""A comma in place of the space between options: YAML would read all after it as one value."""


def read_strategies(text: str, registry: Registry[T], option: str, common: Mapping[str, Any] | None = None) -> list[T]:
    """Build strategies from a list such as ``tail,lookahead[queries=4 pool=5]``; values are read as YAML.

    Parameters
    ----------
    option : str
        Command line option that has the text, for messages.
    common : mapping, optional
        Options of all strategies that have such a field, unless the text sets them.

    Raises
    ------
    ConfigError
        The list has a syntax error, or a name or an option is unknown.
    """
    strategies = []
    for name, options in read_names(text, option):
        own = {field.name for field in dataclasses.fields(registry.class_of(name))}  # type: ignore[arg-type]
        shared = {key: value for key, value in (common or {}).items() if key in own}
        strategies.append(registry.build(name, shared | options))
    if not strategies:
        raise _empty(registry, option)
    return strategies


def read_strategy(text: str, registry: Registry[T], option: str, settings: Mapping[str, Any] | None = None) -> T:
    """Build one strategy such as ``tail[queries=24]``; `settings` override options of the text.

    Parameters and errors as for `read_strategies`; more than one strategy is an error, too.
    """
    name, options = read_name(text, registry, option)
    return registry.build(name, options | dict(settings or {}))


def read_name(text: str, registry: Registry[T], option: str) -> tuple[str, dict[str, Any]]:
    """Parse name and options of one strategy without looking them up; errors as for `read_strategy`."""
    names = read_names(text, option)
    if not names:
        raise _empty(registry, option)
    if len(names) > 1:
        raise ConfigError(f"{option} takes one {registry.kind}, not {short(text)!r}")
    return names[0]


def read_names(text: str, option: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse a list of names with their options.

    >>> read_names("tail[queries=16 pool=5], lookahead", "--scorer")
    [('tail', {'queries': 16, 'pool': 5}), ('lookahead', {})]
    """
    names, position, text = [], 0, text.strip()
    while position < len(text):
        match = ITEM.match(text, position)
        if not match or not match["name"].strip():
            syntax = "takes comma-separated names, with options as in tail[queries=16 pool=5]"
            raise ConfigError(f"{option} {syntax}, not {short(text)!r}")
        names.append((match["name"].strip(), read_options(match["options"] or "", option)))
        position = match.end()
        while position < len(text) and text[position] == " ":
            position += 1
    return names


def read_options(text: str, option: str) -> dict[str, Any]:
    """Parse options such as ``queries=16 pool=5``."""
    options = {}
    for setting in text.split():
        name, equals, value = setting.partition("=")
        if not (equals and name and value) or NEXT_OPTION.search(value):
            raise ConfigError(f"{option}: options are NAME=VALUE, separated by spaces, not {short(setting)!r}")
        options[name] = read_value(value, f"{option}: {short(name)}")
    return options


def _empty(registry: Registry[Any], option: str) -> ConfigError:
    return ConfigError(f"{option} is empty; known: {join_names(registry)}")
