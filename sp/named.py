"""Strategies by name, options in brackets behind it: ``tail[queries=24]``, and YAML of plain values.

Plain are text, whole numbers, finite numbers, true, false and null, in lists and mappings. What YAML 1.1 would make
dates or numbers of base 60 (``2026-11-22``, ``1:30``) is text here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import yaml

from sp.config import Registry
from sp.errors import ConfigError, listed, short

MOST_BYTES = 1 << 18
MOST_VALUES = 20_000  # of one file, what aliases stand for counted as often as it is named
DEEPEST = 32
BIGGEST = (1 << 63) - 1  # of a whole number

TAG = "tag:yaml.org,2002:"
MAPPING, SEQUENCE = TAG + "map", TAG + "seq"
PLAIN = tuple(TAG + name for name in ("str", "int", "float", "bool", "null"))
INT = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)  # numbers as YAML 1.1 has them (yaml.org/type), but for those of base 60


class PlainLoader(yaml.SafeLoader):
    """Composes nodes, so many and so deep at most; use `compose`."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in known if tag in (TAG + "bool", TAG + "null")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        self.depth = self.values = 0
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """See `yaml.composer.Composer`; refuses before it goes on."""
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
    """The node of a text, and what composed it. `numbered`: whether messages tell the line; ConfigError: it is empty,
    no YAML, or over a limit.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{name} has more than {MOST_BYTES >> 10} KiB, the most that is read of YAML; shorten it")

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
        at = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}{line(at)}: not YAML (a character that is not allowed)") from None
    except (yaml.YAMLError, ValueError, OverflowError):  # numbers of directives and of escapes
        at = loader.line + 1 if loader else 1
        raise ConfigError(f"{name}{line(at)}: not YAML (a number that means nothing)") from None
    if node is None:
        raise ConfigError(f"{name} is empty")
    return loader, node


def scalar(loader: PlainLoader, node: yaml.Node, where: str) -> Any:
    """The plain value of a node; ConfigError if it is none."""
    if not isinstance(node, yaml.ScalarNode) and node.tag in (MAPPING, SEQUENCE):
        raise ConfigError(f"{where}: text or a number is wanted here")
    if node.tag not in PLAIN:
        raise ConfigError(f"{where}: {short(node.tag.replace(TAG, '!!'))} is not for such files; write a plain value")
    text: str = node.value
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{where}: half a surrogate pair; write whole characters")
    if node.tag == PLAIN[0]:
        return text
    meant = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    try:
        if meant != node.tag or len(text) > 100:
            raise ValueError
        value = loader.construct_object(node)
    except ValueError:
        raise ConfigError(f"{where}: {short(text)} cannot be read as {node.tag.removeprefix(TAG)}") from None
    if (isinstance(value, int) and abs(value) > BIGGEST) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{where}: {short(text)} is larger than any number that is of use here")
    return value


def read_value(text: str, where: str) -> Any:
    """A plain value of a setting: a scalar, or lists and mappings of such."""
    if not text.strip():
        return None
    loader, node = compose(text, where, numbered=False)
    left = MOST_VALUES

    def plain(node: yaml.Node, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEEPEST:
            raise ConfigError(f"{where}: aliases stand for too much; write it out")
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
            return [plain(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
            return {str(scalar(loader, key, where)): plain(value, depth + 1) for key, value in node.value}
        return scalar(loader, node, where)

    return plain(node, 0)


T = TypeVar("T")

ITEM = re.compile(r"(?P<name>[^,\[\]]+?)\s*(?:\[(?P<options>[^\]]*)\])?\s*(?:,|$)")
NEXT_OPTION = re.compile(r",[a-z_]+=")
"""A comma where a space should part options: YAML would read all behind it as one value."""


def read_strategies(text: str, registry: Registry[T], option: str, common: Mapping[str, Any] | None = None) -> list[T]:
    """Strategies such as ``tail,lookahead[queries=4 pool=5]``; values are read as YAML. `option`: what the text was
    given to, for messages; `common`: options of all that have them and are not given others; ConfigError for a list
    that cannot be read, or an unknown name or option.
    """
    found = []
    for name, given in read_names(text, option):
        own = {field.name for field in dataclasses.fields(registry.class_of(name))}  # type: ignore[arg-type]
        shared = {key: value for key, value in (common or {}).items() if key in own}
        found.append(registry.build(name, shared | given))
    if not found:
        raise _nothing(registry, option)
    return found


def read_strategy(text: str, registry: Registry[T], option: str, settings: Mapping[str, Any] | None = None) -> T:
    """One strategy such as ``tail[queries=24]``, with `settings` in place of options of the same names. Parameters and
    errors as for `read_strategies`; more than one is an error too.
    """
    name, given = read_name(text, registry, option)
    return registry.build(name, given | dict(settings or {}))


def read_name(text: str, registry: Registry[T], option: str) -> tuple[str, dict[str, Any]]:
    """Name and options of one strategy, neither of them looked up; errors as for `read_strategy`."""
    found = read_names(text, option)
    if not found:
        raise _nothing(registry, option)
    if len(found) > 1:
        raise ConfigError(f"{option} takes one {registry.kind} here, not {short(text)!r}")
    return found[0]


def read_names(text: str, option: str) -> list[tuple[str, dict[str, Any]]]:
    """Names with their options, as they stand in a list.

    >>> read_names("tail[queries=16 pool=5], lookahead", "--scorer")
    [('tail', {'queries': 16, 'pool': 5}), ('lookahead', {})]
    """
    found, at, text = [], 0, text.strip()
    while at < len(text):
        match = ITEM.match(text, at)
        if not match or not match["name"].strip():
            wanted = "takes names with commas between them, options as in tail[queries=16 pool=5]"
            raise ConfigError(f"{option} {wanted}, not {short(text)!r}")
        found.append((match["name"].strip(), read_options(match["options"] or "", option)))
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    return found


def read_options(text: str, option: str) -> dict[str, Any]:
    """Options such as ``queries=16 pool=5``."""
    found = {}
    for setting in text.split():
        name, equals, value = setting.partition("=")
        if not (equals and name and value) or NEXT_OPTION.search(value):
            raise ConfigError(f"{option}: options are NAME=VALUE with spaces between them, not {short(setting)!r}")
        found[name] = read_value(value, f"{option}: {short(name)}")
    return found


def _nothing(registry: Registry[Any], option: str) -> ConfigError:
    return ConfigError(f"{option} names nothing; known: {listed(registry)}")
