"""Read YAML so that every value knows its line, and expand sections of a sweep file to combinations.

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
class ConfigValue:
    """A value of a file and its place.

    `value` is a scalar, a list of ConfigValue, or a mapping from strings to ConfigValue; `where` is the place in
    messages, e.g. ``"quickstart.yaml, line 4"`` or ``"--set full"``.
    """

    value: Any
    where: str

    def mapping(self) -> dict[str, ConfigValue]:
        """Return the value, which must be a mapping; else ConfigError."""
        if not isinstance(self.value, dict):
            raise self.error(f"this must be a mapping, not {short(repr(self.plain()))}")
        return self.value

    def items(self) -> list[ConfigValue]:
        """Return the value, which must be a list that is not empty; else ConfigError."""
        if not isinstance(self.value, list):
            raise self.error(f"this must be a list, not {short(repr(self.plain()))}")
        if not self.value:
            raise self.error("this list is empty, so there is nothing to run")
        return self.value

    def plain(self) -> Any:
        """Return the value without places, as plain lists, dictionaries and scalars."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def error(self, message: object) -> ConfigError:
        """Return an error whose message begins with the place of this value."""
        return ConfigError(f"{self.where}: {message}")


def read_yaml(path: Path) -> ConfigValue:
    """Read a YAML file; ConfigError, in one line, if it is missing, not YAML, empty, or has a key twice.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.yaml"
    ...     _ = path.write_text("name: x\\ncells:\\n  keep_ratio: 0.1\\n")
    ...     read_yaml(path).mapping()["cells"].mapping()["keep_ratio"].where
    'x.yaml, line 3'
    """
    if path.exists() and not path.is_file():  # a pipe may have no writer, a device no end
        raise ConfigError(f"cannot read {path}: not a file; name a YAML file")
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


def parse_yaml(text: str, name: str, numbered: bool = True) -> ConfigValue:
    """Parse YAML text; places are ``name, line N``, or only ``name`` if not `numbered`.

    The values of an anchor count again for every alias, so that a few lines cannot expand to millions of values.
    """
    budget = MOST_VALUES

    def place(node: yaml.Node) -> str:
        return f"{name}, line {node.start_mark.line + 1}" if numbered else name

    def build(node: yaml.Node, where: str, depth: int) -> ConfigValue:
        nonlocal budget
        budget -= 1  # one per value and alias, as the tree is walked once for every alias of an anchor
        if budget < 0:
            raise ConfigError(f"{where}: aliases expand to more than {MOST_VALUES:,} values; use fewer, or a grid")
        if depth > DEEPEST:
            raise ConfigError(
                f"{where}: an alias contains itself, or is nested more than {DEEPEST} deep; write its value in full"
            )
        if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
            entries: dict[str, ConfigValue] = {}
            for key, value in node.value:
                label = str(scalar(loader, key, place(key)))
                if label in entries:
                    raise ConfigError(f"{place(key)}: the key {short(label)!r} is here a second time; remove one")
                entries[label] = build(value, place(key), depth + 1)
            return ConfigValue(entries, where)
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
            return ConfigValue([build(item, place(item), depth + 1) for item in node.value], where)
        return ConfigValue(scalar(loader, node, where), where)

    loader, root = compose(text, name, numbered)
    return build(root, place(root), 0)


def build_located(
    build: Callable[[Mapping[str, Any]], T], values: Mapping[str, ConfigValue], fallback: ConfigValue
) -> T:
    """Call `build` with the plain values; an error names the line of the value that is wrong, or else of `fallback`."""
    try:
        return build({key: value.plain() for key, value in values.items()})
    except ConfigError as error:
        # `build` does not say which value it rejects: it is the one that alone gives the same error.
        culprit = fallback
        for key, value in values.items():
            try:
                build({key: value.plain()})
            except ConfigError as alone:
                if str(alone) == str(error):
                    culprit = value
                    break
        raise culprit.error(error) from None


def check_located(value: ConfigValue, expected: Any, name: str) -> Any:
    """Return the plain value if it has the expected type; else ConfigError with its line."""
    try:
        return check_type(value.plain(), expected, name)
    except ConfigError as error:
        raise value.error(error) from None


COMBINATORS = ("grid", "zip", "list")
MOST = 2_000  # combinations of a section; more are taken for a mistake

Combination = dict[str, ConfigValue]


def in_section(root: ConfigValue, section: str, change: Callable[[ConfigValue], ConfigValue]) -> ConfigValue:
    """Return a sweep file with a section changed at its top and in every one of its parts."""
    if not isinstance(root.value, dict):
        return root  # `load_sweep` rejects it with its line
    entries = dict(root.value)
    if section in entries:
        entries[section] = change(entries[section])
    if "parts" in entries and isinstance(entries["parts"].value, list):
        parts = [in_section(part, section, change) for part in entries["parts"].value]
        entries["parts"] = ConfigValue(parts, entries["parts"].where)
    return ConfigValue(entries, root.where)


def present_keys(section: ConfigValue, known: Collection[str]) -> ConfigValue:
    """Return a section with former names of its keys, at any depth, replaced by present ones; see `sp.keywords`."""
    if isinstance(section.value, list):
        return ConfigValue([present_keys(item, known) for item in section.value], section.where)
    if not isinstance(section.value, dict):
        return section
    try:
        entries = present_names(section.value, known)
    except ConfigError as error:
        raise section.error(error) from None
    return ConfigValue({key: present_keys(item, known) for key, item in entries.items()}, section.where)


def expand(section: ConfigValue, keys: Iterable[str], noun: str) -> list[Combination]:
    """Return all combinations of a section, which is a part or a list of parts, in the order of the file.

    `keys` are the allowed names; one that ends in a dot allows every name that begins with it. `noun` is the name of
    a combination in messages. Raises ConfigError for more than `MOST` combinations, before any is made; an unknown
    key; one that is set twice in a part; lists of unequal length under `zip`; or an empty part.
    """
    parts = section.items() if isinstance(section.value, list) else [section]
    choices_of_parts = [_choices(part, noun) for part in parts]
    budget = MOST
    for part, choices in zip(parts, choices_of_parts, strict=True):
        # Counted from the sizes alone, as a few axes can multiply to more combinations than memory holds.
        budget -= prod(count for count, _ in choices)
        if budget < 0:
            raise part.error(f"the section has more than {MOST:,} {noun}s, the most that are allowed; remove some")
    combined = (_combine([options for _, options in choices], [*keys], noun) for choices in choices_of_parts)
    return list(chain.from_iterable(combined))


def _choices(part: ConfigValue, noun: str) -> list[tuple[int, Iterable[Combination]]]:
    """Return the fixed keys and the combinators of a part: for each the number of its combinations, and these."""
    entries = part.mapping()
    if not entries:
        raise part.error(f"no {noun} is set here, so there is nothing to run")
    choices: list[tuple[int, Iterable[Combination]]] = [
        (1, [{key: value for key, value in entries.items() if key not in COMBINATORS}])
    ]
    if "grid" in entries:
        axes = _axes(entries["grid"])
        grid_points = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
        choices.append((prod(map(len, axes.values())), grid_points))
    if "zip" in entries:
        rows = _axes(entries["zip"])
        if len({len(values) for values in rows.values()}) > 1:
            lengths = ", ".join(f"{key} has {len(values)}" for key, values in rows.items())
            raise entries["zip"].error(f"lists under zip must have the same length, but {lengths}")
        pairs = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
        choices.append((len(pairs), pairs))
    if "list" in entries:
        items = [item.mapping() for item in entries["list"].items()]
        choices.append((len(items), items))
    return choices


def _combine(choices: Sequence[Iterable[Combination]], known: list[str], noun: str) -> Iterator[Combination]:
    groups = [list(group) for group in choices]
    for option in chain(*groups):
        _check_keys(option, known, noun)
    for combination in product(*groups):
        merged: Combination = {}
        for option in combination:
            for key, value in option.items():
                if key in merged:
                    raise value.error(f"{key} is set twice for one {noun}; keep one of the two")
                merged[key] = value
        yield merged


def _axes(section: ConfigValue) -> dict[str, list[ConfigValue]]:
    """Return the lists of a grid or zip by key; ConfigError if one is empty."""
    axes = {key: values.items() for key, values in section.mapping().items()}
    if not axes:
        raise section.error("this grid is empty, so there is nothing to run")
    return axes


def _check_keys(combination: Combination, known: list[str], noun: str) -> None:
    for key, value in combination.items():
        if key not in known and not any(name.endswith(".") and key.startswith(name) and key != name for name in known):
            plain = [name + "OPTION" if name.endswith(".") else name for name in known]
            raise value.error(unknown_name(f"key of a {noun}", key, [*plain, *COMBINATORS]))


def for_task(combination: Combination, task: str) -> Combination:
    """Return the combination with ``{task}`` replaced by the name of a task in all texts.

    >>> written = parse_yaml("scorer: {name: probe, weights: 'probe-without-{task}.safetensors'}", "x.yaml")
    >>> for_task(written.mapping(), "vt")["scorer"].plain()
    {'name': 'probe', 'weights': 'probe-without-vt.safetensors'}
    """
    return {key: _for_task(value, task) for key, value in combination.items()}


def _for_task(located: ConfigValue, task: str) -> ConfigValue:
    value = located.value
    if isinstance(value, dict):
        return ConfigValue(for_task(value, task), located.where)
    if isinstance(value, list):
        return ConfigValue([_for_task(item, task) for item in value], located.where)
    return ConfigValue(value.replace(TASK_SLOT, task), located.where) if isinstance(value, str) else located


def override(root: ConfigValue, setting: str, sections: Iterable[str]) -> ConfigValue:
    """Apply one ``--set KEY=VALUE`` to a sweep file.

    ``SECTION.KEY=VALUE`` sets the key in every part of the section and removes it from combinators; a list becomes an
    axis of the grid. Any other key is set at the top.
    """
    key, equals, text = setting.partition("=")
    if not (key and equals):
        raise ConfigError(f"--set takes KEY=VALUE, e.g. cells.keep_ratio=[0.1], not {setting!r}")
    value = parse_yaml(text or "null", f"--set {key}", numbered=False)
    entries = dict(root.mapping())
    section, dot, name = key.partition(".")
    if not dot:  # a key at the top
        if section in sections:
            raise ConfigError(f"--set {key}: {section} is a section; set one of its keys, e.g. {section}.KEY=VALUE")
        entries[key] = value
        return ConfigValue(entries, root.where)
    if section not in sections:
        raise ConfigError(f"--set {key}: {unknown_name('section', section, sections)}")
    old = entries.get(section, ConfigValue({}, value.where))
    if isinstance(old.value, list):
        entries[section] = ConfigValue([_set(part, name, value) for part in old.value], old.where)
    else:
        entries[section] = _set(old, name, value)
    return ConfigValue(entries, root.where)


def _set(part: ConfigValue, name: str, value: ConfigValue) -> ConfigValue:
    """Return the part with `name` set to `value`, and removed from grid, zip and list."""
    entries = {key: item for key, item in part.mapping().items() if key != name}
    for combinator in ("grid", "zip"):
        if combinator in entries:
            section = entries.pop(combinator)
            axes = {key: item for key, item in section.mapping().items() if key != name}
            if axes:
                entries[combinator] = ConfigValue(axes, section.where)
    if "list" in entries:
        section = entries.pop("list")
        items = [
            ConfigValue({key: setting for key, setting in item.mapping().items() if key != name}, item.where)
            for item in section.items()
        ]
        if any(item.value for item in items):
            entries["list"] = ConfigValue(items, section.where)
    if isinstance(value.value, list):
        # A list is an axis; a scalar is a fixed key of the part.
        grid = entries.get("grid", ConfigValue({}, value.where))
        entries["grid"] = ConfigValue(dict(chain(grid.mapping().items(), [(name, value)])), grid.where)
    else:
        entries[name] = value
    return ConfigValue(entries, part.where)
