"""Sections of a sweep file: `grid`, `zip` and `list` expanded to combinations, and `--set` applied to them.

A section is one part or a list of parts. A part has fixed keys and up to three combinators, which multiply:

    grid: {keep_ratio: [0.05, 0.1], scorer: [tail, random]}     # every value with every other
    zip: {positions: [original, contiguous], seed: [0, 1]}      # first with first, second with second
    list: [{kv: f16}, {kv: q4_0, rotate: true}]                 # these settings, one after the other
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, product
from math import prod

from sp.errors import ConfigError, unknown_name
from sp.evals.base import TASK_SLOT
from sp.studies.sweep.located import Located, parse_yaml

COMBINATORS = ("grid", "zip", "list")
MOST = 2_000
"""Combinations of a section."""

Combination = dict[str, Located]


def expand(section: Located, keys: Iterable[str], what: str) -> list[Combination]:
    """All combinations of a section, in the order they are written.

    `section`: A part, or a list of parts; `keys`: names that may be set; one that ends in a dot allows every name that
    begins with it; `what`: what the section sets, for messages (``"cell"``).

    Raises
    ------
    ConfigError
        For more than `MOST` combinations, before any is made; for an unknown key, a key set twice in one part, lists
        of unequal length under `zip`, or nothing at all.

    Examples
    --------
    >>> section = parse_yaml("grid: {a: [1, 2]}\\nb: 3", "x.yaml")
    >>> [{key: value.plain() for key, value in each.items()} for each in expand(section, ["a", "b"], "cell")]
    [{'b': 3, 'a': 1}, {'b': 3, 'a': 2}]
    """
    parts = section.items() if isinstance(section.value, list) else [section]
    known, left = [*keys], MOST
    for part in parts:
        left -= _count(part)
        if left < 0:
            raise part.error(f"these are more than {MOST:,} {what}s, the most of one section; take some away")
    return [each for part in parts for each in _expand_part(part, known, what)]


def _count(part: Located) -> int:
    """How many combinations a part says, before any is made; what is wrong with it is told when they are."""
    entries, count = part.mapping(), 1
    if "grid" in entries:
        count *= prod(len(values) for values in _axes(entries["grid"]).values())
    if "zip" in entries:
        count *= min(len(values) for values in _axes(entries["zip"]).values())
    return count * len(entries["list"].items()) if "list" in entries else count


def _expand_part(part: Located, known: list[str], what: str) -> Iterator[Combination]:
    entries = part.mapping()
    if not entries:
        raise part.error(f"no {what} is set here, so there is nothing to run")
    fixed = {key: value for key, value in entries.items() if key not in COMBINATORS}
    choices: list[list[Combination]] = [[fixed]]
    if "grid" in entries:
        axes = _axes(entries["grid"])
        choices.append([dict(zip(axes, values, strict=True)) for values in product(*axes.values())])
    if "zip" in entries:
        axes = _axes(entries["zip"])
        lengths = {key: len(values) for key, values in axes.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise entries["zip"].error(f"lists under zip must be of one length, but {shown}")
        choices.append([dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)])
    if "list" in entries:
        choices.append([item.mapping() for item in entries["list"].items()])
    for group in choices:
        for each in group:
            _check_keys(each, known, what)
    for combination in product(*choices):
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

    Examples
    --------
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
    """Apply one ``--set KEY=VALUE`` to a sweep file.

    ``SECTION.KEY=VALUE`` sets the key in every part of the section, in place of whatever set it; a list becomes
    an axis of the grid. Any other key is set at the top.

    Examples
    --------
    >>> root = parse_yaml("cells: {grid: {keep_ratio: [0.1, 0.2], seed: [0, 1]}}", "x.yaml")
    >>> override(root, "cells.keep_ratio=0.5", ["cells"]).plain()
    {'cells': {'grid': {'seed': [0, 1]}, 'keep_ratio': 0.5}}
    """
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
