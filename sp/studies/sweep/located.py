"""YAML whose every value knows its line, so that a wrong one can be pointed at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from sp.config import check_type
from sp.errors import ConfigError, short
from sp.named import DEEPEST, MAPPING, MOST_BYTES, MOST_VALUES, SEQUENCE, compose, scalar

T = TypeVar("T")


@dataclass(frozen=True)
class Located:
    """A value and where it was written.

    `value`: A scalar, a list of Located, or a mapping from strings to Located; `where`: for messages:
    ``"quickstart.yaml, line 4"`` or ``"--set full"``.
    """

    value: Any
    where: str

    def mapping(self) -> dict[str, Located]:
        """The value as a mapping; ConfigError if it is none."""
        if not isinstance(self.value, dict):
            raise self.error(f"a mapping is wanted here, not {short(repr(self.plain()))}")
        return self.value

    def items(self) -> list[Located]:
        """The value as a list; ConfigError if it is none, or empty."""
        if not isinstance(self.value, list):
            raise self.error(f"a list is wanted here, not {short(repr(self.plain()))}")
        if not self.value:
            raise self.error("this list is empty, so there is nothing to run")
        return self.value

    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def error(self, message: object) -> ConfigError:
        """An error that points here."""
        return ConfigError(f"{self.where}: {message}")


def read_yaml(path: Path) -> Located:
    """Parse a YAML file; ConfigError, one line, if it is missing, no YAML, empty, or has a key twice.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.yaml"
    ...     _ = path.write_text("name: x\\ncells:\\n  keep_ratio: 0.1\\n")
    ...     read_yaml(path).mapping()["cells"].mapping()["keep_ratio"].where
    'x.yaml, line 3'
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        return parse_yaml(raw.decode("utf-8-sig"), path.name)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name}, line {line}: not UTF-8 text (byte {error.start})") from None


def parse_yaml(text: str, name: str, numbered: bool = True) -> Located:
    """Parse YAML text; places are called ``name, line N``, or only ``name`` unless `numbered`.

    What aliases stand for counts as often as it is named, so that a few lines cannot say millions of values.
    """
    left = MOST_VALUES

    def place(node: yaml.Node) -> str:
        return f"{name}, line {node.start_mark.line + 1}" if numbered else name

    def build(node: yaml.Node, where: str, depth: int) -> Located:
        nonlocal left
        left -= 1
        if left < 0:
            raise ConfigError(f"{where}: aliases stand for more than {MOST_VALUES:,} values; write less, or a grid")
        if depth > DEEPEST:
            raise ConfigError(f"{where}: an alias stands for itself, or more than {DEEPEST} deep; write it out")
        if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
            entries: dict[str, Located] = {}
            for key, value in node.value:
                label = str(scalar(loader, key, place(key)))
                if label in entries:
                    raise ConfigError(f"{place(key)}: {short(label)!r} stands here a second time")
                entries[label] = build(value, place(key), depth + 1)
            return Located(entries, where)
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
            return Located([build(item, place(item), depth + 1) for item in node.value], where)
        return Located(scalar(loader, node, where), where)

    loader, root = compose(text, name, numbered)
    return build(root, place(root), 0)


def build_located(build: Callable[[Mapping[str, Any]], T], values: Mapping[str, Located], fallback: Located) -> T:
    """Call `build` with the plain values; an error names the line of the value that fails alone, if one does."""
    try:
        return build({key: value.plain() for key, value in values.items()})
    except ConfigError as error:
        culprit = fallback
        for key, value in values.items():
            try:
                build({key: value.plain()})
            except ConfigError as alone:
                if str(alone) == str(error):
                    culprit = value
                    break
        raise culprit.error(error) from None


def check_located(value: Located, expected: Any, name: str) -> Any:
    """The plain value if it has the type; else an error with its line."""
    try:
        return check_type(value.plain(), expected, name)
    except ConfigError as error:
        raise value.error(error) from None
