"""What a sweep file asks for: checked in full, with line numbers, and expanded to runs before anything is loaded.

A run is one block of examples of one task and length, read by one pair, in every cell: cells with one scorer share
its scores, so keep ratios, selectors, positions and KV formats cost no drafter pass of their own. A file has the
sections `pairs` (the embedded one if left out), `tasks` and `cells`, or `parts`, a list of such with a `name` each.
In `cells`, ``{task}`` stands for the registered name of the task that is run: weights that never saw it, for one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from sp.chat import Thinking
from sp.config import REQUIRED, Registry, fields_of, from_mapping
from sp.decode import Greedy, Speculative
from sp.errors import ConfigError, unknown_name
from sp.evals import TASKS
from sp.evals.natural.task import NaturalTask
from sp.evals.run import label as strategy_label
from sp.plugins import find_plugin
from sp.scoring.base import ReadingScorer
from sp.session import RunOptions
from sp.session.options import BY_NAME
from sp.studies.sweep.combine import Combination, expand, for_task, override
from sp.studies.sweep.keys import TaskKeys, TopKeys
from sp.studies.sweep.located import Located, build_located, check_located, read_yaml
from sp.studies.sweep.pairs import OF_PAIRS, Pair, make_pair, with_draft, with_drafter
from sp.studies.sweep.runs import Cell, Run, Sweep, TaskSpec, config_hash

SECTIONS = ("pairs", "tasks", "cells")
TOP, OF_TASKS = ({one.name: one for one in fields_of(keys)} for keys in (TopKeys, TaskKeys))
WRITTEN = {one.name: one for one in fields_of(RunOptions) if one.option.written}
STRATEGIES = {name: (registry, str(WRITTEN[name].default)) for name, registry in BY_NAME.items()}
COMPRESS = "always"
"""What cells do unless the file says otherwise."""
CELL_KEYS = (*WRITTEN, *(f"{name}." for name in STRATEGIES))
MOST_RUNS = 100_000
MOST_CELLS = 1_000_000
"""Of all runs together, as each is checked and hashed with its cells."""
TASK_KEYS = (*OF_TASKS, "task.")
NUMBERS = {name: one for name, one in OF_TASKS.items() if name in ("tokens", "examples", "first", "per_run")}


def load_sweep(path: Path, settings: Sequence[str] = (), out: Path | None = None) -> Sweep:
    """Read a sweep file with ``--set`` overrides, and perhaps another folder for what it finds.

    Raises
    ------
    ConfigError
        For whatever is wrong, with the file's line.
    """
    root = read_yaml(path)
    for setting in settings:
        root = apply_setting(root, setting)
    entries = root.mapping()
    if "plugins" in entries:  # first, as all else may name what they register
        load_plugins(entries["plugins"], path.parent)
    for key, value in entries.items():
        if key not in TOP and key not in (*SECTIONS, "parts"):
            raise value.error(unknown_name("key of a sweep", key, [*TOP, *SECTIONS, "parts"]))
        if key in TOP:
            check_located(value, TOP[key].hint, key)
    given = {key: value.plain() for key, value in entries.items() if key in TOP}
    shared = {key: value for key, value in entries.items() if key in SECTIONS}
    parts = [{**shared, **part.mapping()} for part in entries["parts"].items()] if "parts" in entries else [shared]
    runs = bounded((run for part in parts for run in part_runs(part, path.name, given.get("full", True))), path.name)
    name = given.get("name") or path.stem
    where = Path(out or given.get("out") or f"sp-sweep/{name}")
    return Sweep(name, runs, where, given.get("device", "auto"), given.get("report", False))


def load_plugins(listed: Located, beside: Path) -> None:
    """Load the plugins of a sweep file, from where it is started or from beside it; an error has the file's line."""
    for each in listed.value if isinstance(listed.value, list) else [listed]:
        named = check_located(each, str, "plugins")
        try:
            find_plugin(named, beside).load()
        except ConfigError as error:
            raise each.error(error) from None


def bounded(runs: Iterable[Run], file: str) -> tuple[Run, ...]:
    """The runs; ConfigError as soon as they are more than can be kept account of."""
    found: list[Run] = []
    cells = 0
    for run in runs:
        found.append(run)
        cells += len(run.cells)
        if len(found) > MOST_RUNS or cells > MOST_CELLS:
            raise ConfigError(
                f"{file}: more than {MOST_RUNS:,} runs, or {MOST_CELLS:,} cells of all runs together, the most of a "
                "sweep; raise per_run, or write several sweeps"
            )
    return tuple(found)


def apply_setting(root: Located, setting: str) -> Located:
    """One ``--set``; of a section, in every part of the file that has it."""
    if "parts" not in root.mapping() or "." not in setting.partition("=")[0]:
        return override(root, setting, SECTIONS)
    entries = dict(root.mapping())
    section = setting.partition(".")[0]
    if section in entries:
        entries = dict(override(root, setting, SECTIONS).mapping())
    parts = [
        override(part, setting, SECTIONS) if section in part.mapping() or section not in SECTIONS else part
        for part in entries["parts"].items()
    ]
    return Located({**entries, "parts": Located(parts, entries["parts"].where)}, root.where)


def part_runs(part: Mapping[str, Located], file: str, full: bool) -> Iterator[Run]:
    """Runs of one part: its pairs, times its tasks, in its cells."""
    for key, value in part.items():
        if key not in (*SECTIONS, "name"):
            raise value.error(unknown_name("key of a part", key, [*SECTIONS, "name"]))
    name = check_located(part["name"], str, "name") if "name" in part else ""
    for section in ("tasks", "cells"):
        if section not in part:
            raise ConfigError(f"{file}: the section {section} is missing")
    pairs = [Pair()] if "pairs" not in part else [make_pair(each) for each in _combinations(part, "pairs")]
    written = _combinations(part, "cells")

    @cache
    def cells_of(task: str) -> tuple[Cell, ...]:
        return unique_cells(make_cell(for_task(each, task), part["cells"]) for each in written)

    for pair in pairs:
        for each in _combinations(part, "tasks"):
            for run in make_runs(each, part["tasks"], pair, cells_of, full):
                guesses = any(isinstance(cell.options.decode, Speculative) for cell in run.cells)
                ready = with_drafter(pair, [type(cell.options.scorer) for cell in run.cells])
                yield dataclasses.replace(run, part=name, pair=with_draft(ready, guesses, part["cells"]))


def _combinations(entries: Mapping[str, Located], section: str) -> list[Combination]:
    keys = {"pairs": OF_PAIRS, "tasks": TASK_KEYS, "cells": CELL_KEYS}[section]
    return expand(entries[section], keys, section.removesuffix("s"))


def make_strategy(each: Combination, kind: str, registry: Registry[Any], default: str) -> tuple[Any, dict[str, Any]]:
    """A scorer, selector, decoder or task from ``kind`` (a name, or a mapping with ``name``) and ``kind.OPTION`` keys.

    Returns
    -------
    tuple
        The built strategy, and its registered name and every option, plain.
    """
    given = each.get(kind, Located(default, "default"))
    options: dict[str, Located] = {}
    if isinstance(given.value, dict):
        options = dict(given.value)
        if "name" not in options:
            raise given.error(f"a {kind} with options needs its name: {{name: {default or 'NAME'}, OPTION: VALUE}}")
        name = check_located(options.pop("name"), str, f"name of the {kind}")
    else:
        name = check_located(given, str, kind)
    for key, value in each.items():
        if key.startswith(f"{kind}."):
            if key.removeprefix(f"{kind}.") in options:
                raise value.error(f"{key} is set twice; keep one of the two")
            options[key.removeprefix(f"{kind}.")] = value
    built = build_located(lambda values: registry.build(name, values), options, given)
    return built, {"name": name, **dataclasses.asdict(built)}


def make_cell(each: Combination, section: Located) -> Cell:
    """The cell of a combination. Compression is always on, unless the file says otherwise."""
    built: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for kind, (registry, default) in STRATEGIES.items():
        built[kind], config[kind] = make_strategy(each, kind, registry, default)
    rest = {key: value for key, value in each.items() if key.partition(".")[0] not in STRATEGIES}
    base = {"compress": COMPRESS, **built}
    options = build_located(lambda values: RunOptions(**{**base, **values}), rest, section)
    config |= {name: getattr(options, name) for name in WRITTEN if name not in STRATEGIES}
    config["scorer"] = {"name": config["scorer"]["name"], **vars(options.scorer)}
    config["sparse"] = options.target_sparse  # as all runs have it, whose hashes stand
    config["rotate"] = options.rotated  # whether named or by default: it is one run, and f16 has the hash it had
    if isinstance(options.decode, Greedy):  # as all runs were before there was a choice, whose hashes stand
        del config["decode"]
    if not options.mark_omitted:  # likewise
        del config["mark_omitted"]
    if isinstance(options.scorer, ReadingScorer):  # likewise, in the words of before there was one value
        read = options.scorer.sparse.recorded()
        told = {name: value for name, value in read.items() if name != "blocks" or value is not None}
        config["scorer"] = config["scorer"] | told | {"alpha": 0.1 if read["alpha"] is None else read["alpha"]}
        del config["scorer"]["sparse"]
    return Cell(options, config)


def unique_cells(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells without repetitions, which `--set` can bring about."""
    return tuple({config_hash(cell.config): cell for cell in cells}.values())


def make_thinking(each: Combination) -> tuple[Thinking, dict[str, str]]:
    """What a task asks of thinking, and the keys that say so where it is not what they are without: off."""
    named = {"mode": "thinking", "effort": "reasoning_effort"}
    given = {name: each[key] for name, key in named.items() if key in each}
    where = next(iter(given.values()), Located(None, "default"))
    thinking = build_located(lambda values: from_mapping(Thinking, {"mode": "off", **values}, "thinking"), given, where)
    asked = {} if thinking.mode == "off" else {"thinking": thinking.mode}
    return thinking, asked | ({} if thinking.effort is None else {"reasoning_effort": thinking.effort})


def make_runs(
    each: Combination, section: Located, pair: Pair, cells_of: Callable[[str], tuple[Cell, ...]], full: bool
) -> Iterable[Run]:
    """Blocks of at most `per_run` examples of one task and length, in the cells of the task of that name."""
    if "task" not in each:
        raise section.error("a task needs its name: task: NAME")
    task, config = make_strategy(each, "task", TASKS, "")
    numbers = natural_numbers(each, task) if isinstance(task, NaturalTask) else read_numbers(each)
    thinking, asked = make_thinking(each)
    words = [strategy_label(TASKS, task), *(f"{name}={value}" for name, value in asked.items())]
    spec = TaskSpec(task, " ".join(words), {**config, **asked}, thinking)
    end, cells = numbers["first"] + numbers["examples"], cells_of(config["name"])
    for first in range(numbers["first"], end, numbers["per_run"]):
        count, tokens = min(numbers["per_run"], end - first), numbers["tokens"]
        if isinstance(task, NaturalTask):
            tokens, full = task.length(first, count), task.answers
        yield Run(pair, spec, tokens, first, count, cells, full)


def read_numbers(each: Combination, known: Container[str] = ()) -> dict[str, int]:
    """The numbers of a task within their limits, by key; 0 for those that are `known` otherwise and left out."""
    numbers = {name: 0 if one.value is REQUIRED else one.value for name, one in NUMBERS.items()}
    for key, one in NUMBERS.items():
        if key in each:
            numbers[key] = check_located(each[key], Annotated[one.hint, one.option], key)
        elif one.value is REQUIRED and key not in known:
            raise each["task"].error(f"the task needs {key}: a number")
    return numbers


def natural_numbers(each: Combination, task: NaturalTask) -> dict[str, int]:
    """The numbers of a task whose questions are known, all of them if it does not say how many."""
    if "tokens" in each:
        raise each["tokens"].error("documents of task natural are as long as they are; leave tokens out")
    numbers = read_numbers(each, ("tokens", "examples"))
    try:
        n = len(task.asked)
    except ConfigError as error:
        raise each["task"].error(error) from None
    if (end := numbers["first"] + max(numbers["examples"], 1)) > n:
        key = "examples" if "examples" in each else "first"
        raise each[key].error(f"question {end} is asked for, but there are {n}; lower {key}")
    return numbers | {"examples": numbers["examples"] or n - numbers["first"]}
