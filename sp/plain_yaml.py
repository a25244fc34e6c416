"""YAML of plain values, read from text that nobody vouches for: counted while it is read, refused over stated limits.

Plain are text, whole numbers, finite numbers, true, false and null, in lists and mappings. What YAML 1.1 would make
dates or numbers of base 60 (``2026-11-22``, ``1:30``) is text here.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import yaml

from sp.errors import ConfigError, short

MOST_BYTES = 1 << 18
MOST_VALUES = 20_000
"""Of one file, what aliases stand for counted as often as it is named."""
DEEPEST = 32
BIGGEST = (1 << 63) - 1
"""Of a whole number."""

TAG = "tag:yaml.org,2002:"
MAPPING, SEQUENCE = TAG + "map", TAG + "seq"
PLAIN = tuple(TAG + name for name in ("str", "int", "float", "bool", "null"))
INT = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$"
    r"|\.(?:nan|NaN|NAN)$"
)
"""Numbers as YAML 1.1 has them (yaml.org/type), but for those of base 60."""


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
    """The node of a text, and what composed it.

    `numbered`: whether messages tell the line; ConfigError: it is empty, no YAML, or over a limit.
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
