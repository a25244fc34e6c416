"""YAML whose every value knows its line, and sections of a sweep file in it expanded to combinations.

A section is one part or a list of parts. A part has fixed keys and up to three combinators, which multiply:

    grid: {keep_ratio: [0.05, 0.1], scorer: [tail, random]}     # every value with every other
    zip: {positions: [original, contiguous], seed: [0, 1]}      # first with first, second with second
    list: [{kv: f16}, {kv: q4_0, rotate: true}]                 # these settings, one after the other
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import yaml

from sp.config import check_type
from sp.errors import ConfigError, short, unknown_name
from sp.evals.base import TASK_SLOT
from sp.keywords import present_names
from sp.named import DEEPEST, MAPPING, MOST_BYTES, MOST_VALUES, SEQUENCE, compose, scalar

T = TypeVar("T")


@dataclass(frozen=True)
class Located:
    """A value and where it was written. `value`: A scalar, a list of Located, or a mapping from strings to Located;
    `where`: for messages: ``"quickstart.yaml, line 4"`` or ``"--set full"``."""

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

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.yaml"
    ...     _ = path.write_text("name: x\\ncells:\\n  keep_ratio: 0.1\\n")
    ...     read_yaml(path).mapping()["cells"].mapping()["keep_ratio"].where
    'x.yaml, line 3'
    """
    if path.exists() and not path.is_file():  # a pipe may have no writer, a device no end
        raise ConfigError(f"cannot read {path}: not a file; name one of YAML")
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
    """Parse YAML text; places are called ``name, line N``, or only ``name`` unless `numbered`. What aliases stand for
    counts as often as it is named, so that a few lines cannot say millions of values."""
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


COMBINATORS = ("grid", "zip", "list")
MOST = 2_000  # combinations of a section

Combination = dict[str, Located]


def in_section(root: Located, section: str, change: Callable[[Located], Located]) -> Located:
    """Return a sweep file with a section changed at its top and in every one of its parts."""
    if not isinstance(root.value, dict):
        return root  # refused where the keys of the file are read
    entries = dict(root.value)
    if section in entries:
        entries[section] = change(entries[section])
    if "parts" in entries and isinstance(entries["parts"].value, list):
        parts = [in_section(part, section, change) for part in entries["parts"].value]
        entries["parts"] = Located(parts, entries["parts"].where)
    return Located(entries, root.where)


def present_keys(section: Located, known: Collection[str]) -> Located:
    """Return a section with the present names of its keys, at any depth, in place of former ones; see `sp.keywords`."""
    if isinstance(section.value, list):
        return Located([present_keys(item, known) for item in section.value], section.where)
    if not isinstance(section.value, dict):
        return section
    try:
        entries = present_names(section.value, known)
    except ConfigError as error:
        raise section.error(error) from None
    return Located({key: present_keys(item, known) for key, item in entries.items()}, section.where)


def expand(section: Located, keys: Iterable[str], what: str) -> list[Combination]:
    """All combinations of a section, a part or a list of parts, in the order they are written. Of `keys` one that ends
    in a dot allows every name that begins with it. ConfigError for more than `MOST` combinations, before any is made;
    an unknown key, one set twice in a part, lists of unequal length under `zip`, or nothing at all."""
    parts = section.items() if isinstance(section.value, list) else [section]
    listed = [_choices(part, what) for part in parts]
    left = MOST
    for part, choices in zip(parts, listed, strict=True):
        left -= prod(count for count, _ in choices)
        if left < 0:
            raise part.error(f"these are more than {MOST:,} {what}s, the most of one section; take some away")
    return [each for choices in listed for each in _combine([each for _, each in choices], [*keys], what)]


def _choices(part: Located, what: str) -> list[tuple[int, Iterable[Combination]]]:
    """What a part has to choose from, and how many of each, before any is made."""
    entries = part.mapping()
    if not entries:
        raise part.error(f"no {what} is set here, so there is nothing to run")
    found: list[tuple[int, Iterable[Combination]]] = [
        (1, [{key: value for key, value in entries.items() if key not in COMBINATORS}])
    ]
    if "grid" in entries:
        axes = _axes(entries["grid"])
        made = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
        found.append((prod(map(len, axes.values())), made))
    if "zip" in entries:
        rows = _axes(entries["zip"])
        if len({len(values) for values in rows.values()}) > 1:
            shown = ", ".join(f"{key} has {len(values)}" for key, values in rows.items())
            raise entries["zip"].error(f"lists under zip must be of one length, but {shown}")
        pairs = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
        found.append((len(pairs), pairs))
    if "list" in entries:
        items = [item.mapping() for item in entries["list"].items()]
        found.append((len(items), items))
    return found


def _combine(choices: Sequence[Iterable[Combination]], known: list[str], what: str) -> Iterator[Combination]:
    groups = [list(group) for group in choices]
    for each in chain(*groups):
        _check_keys(each, known, what)
    for combination in product(*groups):
        merged: Combination = {}
        for each in combination:
            for key, value in each.items():
                if key in merged:
                    raise value.error(f"{key} is set twice for one {what}; keep one of the two")
                merged[key] = value
        yield merged


def _axes(section: Located) -> dict[str, list[Located]]:
    """Lists of a grid or zip by key; none may be empty."""
    axes = {key: values.items() for key, values in section.mapping().items()}
    if not axes:
        raise section.error("this grid is empty, so there is nothing to run")
    return axes


def _check_keys(each: Combination, known: list[str], what: str) -> None:
    for key, value in each.items():
        if key not in known and not any(name.endswith(".") and key.startswith(name) and key != name for name in known):
            plain = [name + "OPTION" if name.endswith(".") else name for name in known]
            raise value.error(unknown_name(f"key of a {what}", key, [*plain, *COMBINATORS]))


def for_task(combination: Combination, task: str) -> Combination:
    """The combination with the name of a task wherever a text says ``{task}``.

    >>> written = parse_yaml("scorer: {name: probe, weights: 'probe-without-{task}.safetensors'}", "x.yaml")
    >>> for_task(written.mapping(), "vt")["scorer"].plain()
    {'name': 'probe', 'weights': 'probe-without-vt.safetensors'}
    """
    return {key: _for_task(value, task) for key, value in combination.items()}


def _for_task(given: Located, task: str) -> Located:
    value = given.value
    if isinstance(value, dict):
        return Located(for_task(value, task), given.where)
    if isinstance(value, list):
        return Located([_for_task(item, task) for item in value], given.where)
    return Located(value.replace(TASK_SLOT, task), given.where) if isinstance(value, str) else given


def override(root: Located, setting: str, sections: Iterable[str]) -> Located:
    """Apply one ``--set KEY=VALUE`` to a sweep file. ``SECTION.KEY=VALUE`` sets the key in every part of the section,
    in place of whatever set it; a list becomes an axis of the grid. Any other key is set at the top."""
    key, equals, text = setting.partition("=")
    if not (key and equals):
        raise ConfigError(f"--set takes KEY=VALUE, e.g. cells.keep_ratio=[0.1], not {setting!r}")
    value = parse_yaml(text or "null", f"--set {key}", numbered=False)
    entries = dict(root.mapping())
    section, dot, name = key.partition(".")
    if not dot:
        if section in sections:
            raise ConfigError(f"--set {key}: name what to set in it, e.g. {section}.KEY=VALUE")
        entries[key] = value
        return Located(entries, root.where)
    if section not in sections:
        raise ConfigError(f"--set {key}: {unknown_name('section', section, sections)}")
    old = entries.get(section, Located({}, value.where))
    if isinstance(old.value, list):
        entries[section] = Located([_set(part, name, value) for part in old.value], old.where)
    else:
        entries[section] = _set(old, name, value)
    return Located(entries, root.where)


def _set(part: Located, name: str, value: Located) -> Located:
    """The part with `name` set to `value` and to nothing else."""
    entries = {key: item for key, item in part.mapping().items() if key != name}
    for combinator in ("grid", "zip"):
        if combinator in entries:
            section = entries.pop(combinator)
            left = {key: item for key, item in section.mapping().items() if key != name}
            if left:
                entries[combinator] = Located(left, section.where)
    if "list" in entries:
        section = entries.pop("list")
        left_items = [
            Located({key: each for key, each in item.mapping().items() if key != name}, item.where)
            for item in section.items()
        ]
        if any(item.value for item in left_items):
            entries["list"] = Located(left_items, section.where)
    if isinstance(value.value, list):
        grid = entries.get("grid", Located({}, value.where))
        entries["grid"] = Located(dict(chain(grid.mapping().items(), [(name, value)])), grid.where)
    else:
        entries[name] = value
    return Located(entries, part.where)
