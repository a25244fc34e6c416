"""Read a sweep file: check it in full, with line numbers, and expand it to runs before any model is loaded.

A run is a block of examples of one task and length, read by one pair of models in every cell. Cells with the same
scorer share its scores, so keep ratios, selectors, positions and KV formats need no drafter passes of their own. A
file has the sections `pairs` (the embedded pair if omitted), `tasks` and `cells`, or `parts`, a list of such groups
with a `name` each. In `cells`, ``{task}`` is replaced by the registered name of the task that is run, e.g. to name
weights that were not trained on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from sp.chat import Thinking
from sp.config import REQUIRED, Registry, fields_of, from_mapping
from sp.decode import Greedy, Speculative
from sp.errors import ConfigError, GGUFError, unknown_name
from sp.evals import TASKS, Task
from sp.evals.base import WITHOUT
from sp.evals.natural.questions import NaturalTask
from sp.evals.run import label as strategy_label
from sp.evals.run import thinking_facts
from sp.hub import model_path
from sp.keywords import present_name
from sp.models import ModelConfig
from sp.plugins import find_plugin
from sp.scoring import Scorer
from sp.scoring.base import ReadingScorer
from sp.scoring.sparse import target_rule
from sp.session import RunOptions
from sp.session.compress import with_positions
from sp.session.loaded import default_drafter, embedded
from sp.session.options import BY_NAME, ModelOptions
from sp.studies.sweep.config_values import (
    Combination,
    ConfigValue,
    build_located,
    check_located,
    expand,
    for_task,
    in_section,
    override,
    present_keys,
    read_yaml,
)
from sp.studies.sweep.keys import Device, TaskKeys, TopKeys


@dataclass(frozen=True)
class Pair(ModelOptions):
    """Files of the models and options of both.

    Parameters
    ----------
    speculator : Path, optional
        DFlash draft model of the target, for cells of speculative decoding; the embedded target has its own.
    """

    speculator: Path | None = None

    @property
    def changed_options(self) -> dict[str, Any]:
        """Options of RoPE and precision that differ from their defaults, as arguments of `Pipeline.open`."""
        names = ("target_rope", "drafter_rope", "precision", "drafter_precision")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Pair, name)}


PAIR_FIELDS = {field.name: field for field in fields_of(Pair)}


def make_pair(combination: Combination) -> Pair:
    """Build the pair of a combination; ConfigError if a file does not exist or an option is wrong."""
    options: dict[str, Any] = {}
    for name, value in combination.items():
        is_file = PAIR_FIELDS[name].hint == Path | None
        options[name] = located_model(value, name) if is_file else check_located(value, PAIR_FIELDS[name].hint, name)
    return Pair(**options)


def located_model(value: ConfigValue, role: str) -> Path:
    """Return the path of a model's file, or the name of a known model; ConfigError if there is no such file."""
    path = Path(check_located(value, str, role))
    try:
        there = model_path(path).is_file()
    except GGUFError as error:
        raise value.error(error) from None
    if not there:
        raise value.error(f"{role} {path} is not a file; give the path of a GGUF file, or omit it")
    return path


def with_drafter(pair: Pair, scorers: Iterable[type[Scorer]]) -> Pair:
    """Return the pair with the `default_drafter` of its target if it names a target but no drafter."""
    if pair.target is None or pair.drafter is not None:
        return pair
    return replace(pair, drafter=default_drafter(pair.target, scorers))


def with_speculator(pair: Pair, speculates: bool, cells: ConfigValue) -> Pair:
    """Return the pair with a draft model if cells are speculative, else without one.

    The embedded target has a draft model of its own; for any other it must be named.
    """
    if speculates and pair.speculator is None and pair.target is not None:
        raise cells.error(f"speculative cells need a draft model for {pair.target.name}; add pairs: speculator: FILE")
    # A pair whose cells are not speculative drops its speculator, so that the hash of its runs does not depend on it.
    return replace(pair, speculator=(pair.speculator or embedded("draft")) if speculates else None)


@dataclass(frozen=True)
class SweepCell:
    """Options of a compressed prefill. `config`: every option as a plain value, as it enters the hash of a run."""

    options: RunOptions
    config: Mapping[str, Any]

    def resolve(self, target: ModelConfig) -> SweepCell:
        """Return the cell with positions `auto` decided for a target: a hash has what was computed."""
        options = with_positions(self.options, target)
        return SweepCell(options, {**self.config, "positions": options.positions})


@dataclass(frozen=True)
class TaskSpec:
    """A task with its options.

    `name` has the options that differ from the defaults, e.g. ``"needle depth=0.5"``; `config` has all as plain
    values. The thinking mode is part of both if it is not off.
    """

    task: Task
    name: str
    config: Mapping[str, Any]
    thinking: Thinking = WITHOUT


@dataclass(frozen=True)
class Run:
    """Examples ``first`` to ``first + count - 1`` of one task and length, in every cell.

    `part` is the name of its part of the file; it is not part of the hash.
    """

    pair: Pair
    spec: TaskSpec
    tokens: int
    first: int
    count: int
    cells: tuple[SweepCell, ...]
    full: bool
    part: str = ""

    @property
    def label(self) -> str:
        """Text that `--only` matches: ``task/tokens/first``, after the target's name if it is not the embedded one."""
        pair = f"{self.pair.target.stem}/" if self.pair.target else ""
        return f"{pair}{self.spec.name}/{self.tokens}/{self.first}"

    def config(self, models: Mapping[str, Any], files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return everything that the rows of this run depend on, as it is hashed.

        `models`: SHA-256 and options by role (`PairFacts.hashes`); `files`: SHA-256 of the files of its scorers.
        """
        return {
            "models": dict(models),
            "task": self.spec.config,
            "tokens": self.tokens,
            "first": self.first,
            "count": self.count,
            "full": self.full,
            "cells": [cell.config for cell in self.cells],
            **({"files": dict(files)} if files else {}),
        }


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its runs in the order of the file, and the folder of its rows; `report` if it ends in one."""

    name: str
    runs: tuple[Run, ...]
    out: Path
    device: Device
    report: bool


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of canonical JSON."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


SECTIONS = ("pairs", "tasks", "cells")
TOP_FIELDS, TASK_FIELDS = ({field.name: field for field in fields_of(keys)} for keys in (TopKeys, TaskKeys))
CELL_FIELDS = {field.name: field for field in fields_of(RunOptions) if field.option.textual}
STRATEGIES = {name: (registry, str(CELL_FIELDS[name].default)) for name, registry in BY_NAME.items()}
COMPRESS = "always"  # default of cells, which are there to compare compressed prefills
CELL_KEYS = (*CELL_FIELDS, *(f"{name}." for name in STRATEGIES), "target.")
MOST_RUNS = 100_000
MOST_CELLS = 1_000_000  # of all runs together, as every run is checked and hashed with its cells
TASK_KEYS = (*TASK_FIELDS, "task.")
NUMBER_FIELDS = {
    name: field for name, field in TASK_FIELDS.items() if name in ("tokens", "examples", "first", "per_run")
}


def load_sweep(path: Path, settings: Sequence[str] = (), out: Path | None = None) -> Sweep:
    """Read a sweep file, apply ``--set`` overrides, and replace its folder by `out` if given.

    Raises ConfigError, with the line of the file, for anything that is wrong.
    """
    root = in_section(read_yaml(path), "pairs", partial(present_keys, known=PAIR_FIELDS))
    for setting in settings:
        root = apply_setting(root, setting)
    entries = root.mapping()
    if "plugins" in entries:  # first, as the rest of the file may name the strategies and tasks that they register
        plugins = entries["plugins"]
        for plugin in plugins.value if isinstance(plugins.value, list) else [plugins]:
            plugin_name = check_located(plugin, str, "plugins")
            try:
                find_plugin(plugin_name, path.parent).load()
            except ConfigError as error:
                raise plugin.error(error) from None
    for key, value in entries.items():
        if key not in TOP_FIELDS and key not in (*SECTIONS, "parts"):
            raise value.error(unknown_name("key of a sweep", key, [*TOP_FIELDS, *SECTIONS, "parts"]))
        if key in TOP_FIELDS:
            check_located(value, TOP_FIELDS[key].hint, key)
    top = {key: value.plain() for key, value in entries.items() if key in TOP_FIELDS}
    shared = {key: value for key, value in entries.items() if key in SECTIONS}
    parts = [{**shared, **part.mapping()} for part in entries["parts"].items()] if "parts" in entries else [shared]
    runs = bounded((run for part in parts for run in part_runs(part, path.name, top.get("full", True))), path.name)
    name = top.get("name") or path.stem
    folder = Path(out or top.get("out") or f"sp-sweep/{name}")
    return Sweep(name, runs, folder, top.get("device", "auto"), top.get("report", False))


def bounded(runs: Iterable[Run], file: str) -> tuple[Run, ...]:
    """Return the runs; ConfigError as soon as they or their cells are too many."""
    accepted: list[Run] = []
    cells = 0
    for run in runs:
        accepted.append(run)
        cells += len(run.cells)
        if len(accepted) > MOST_RUNS or cells > MOST_CELLS:
            raise ConfigError(
                f"{file}: the sweep has more than {MOST_RUNS:,} runs, or {MOST_CELLS:,} cells of all runs together; "
                "raise per_run, or write several sweeps"
            )
    return tuple(accepted)


def apply_setting(root: ConfigValue, setting: str) -> ConfigValue:
    """Apply one ``--set``; that of a section applies to every part of the file that has this section."""
    if setting.startswith("pairs."):
        name, equals, value = setting.removeprefix("pairs.").partition("=")
        setting = f"pairs.{present_name(name, PAIR_FIELDS, 'pairs.{}'.format)}{equals}{value}"
    if "parts" not in root.mapping() or "." not in setting.partition("=")[0]:
        return override(root, setting, SECTIONS)
    # A section may be at the top, where all parts share it, and in parts that have their own.
    entries = dict(root.mapping())
    section = setting.partition(".")[0]
    if section in entries:
        entries = dict(override(root, setting, SECTIONS).mapping())
    parts = [
        override(part, setting, SECTIONS) if section in part.mapping() or section not in SECTIONS else part
        for part in entries["parts"].items()
    ]
    return ConfigValue({**entries, "parts": ConfigValue(parts, entries["parts"].where)}, root.where)


def part_runs(part: Mapping[str, ConfigValue], file: str, full: bool) -> Iterator[Run]:
    """Expand one part to runs: every pair with every task, in all cells."""
    for key, value in part.items():
        if key not in (*SECTIONS, "name"):
            raise value.error(unknown_name("key of a part", key, [*SECTIONS, "name"]))
    name = check_located(part["name"], str, "name") if "name" in part else ""
    for section in ("tasks", "cells"):
        if section not in part:
            raise ConfigError(f"{file}: the section {section} is missing")
    pairs = (
        [Pair()] if "pairs" not in part else [make_pair(combination) for combination in _combinations(part, "pairs")]
    )
    cell_combinations = _combinations(part, "cells")

    @cache  # all pairs, lengths and blocks of a task share its cells
    def cells_of(task: str) -> tuple[SweepCell, ...]:
        cells = (make_cell(for_task(combination, task), part["cells"]) for combination in cell_combinations)
        return distinct(cells)  # `--set` can make cells equal

    for pair in pairs:
        for task_combination in _combinations(part, "tasks"):
            for run in make_runs(task_combination, part["tasks"], pair, cells_of, full):
                speculates = any(isinstance(cell.options.decode, Speculative) for cell in run.cells)
                complete_pair = with_drafter(pair, [type(cell.options.scorer) for cell in run.cells])
                yield dataclasses.replace(
                    run, part=name, pair=with_speculator(complete_pair, speculates, part["cells"])
                )


def distinct(cells: Iterable[SweepCell]) -> tuple[SweepCell, ...]:
    """Return the cells without those that equal an earlier one."""
    return tuple({config_hash(cell.config): cell for cell in cells}.values())


def _combinations(entries: Mapping[str, ConfigValue], section: str) -> list[Combination]:
    keys = {"pairs": PAIR_FIELDS, "tasks": TASK_KEYS, "cells": CELL_KEYS}[section]
    return expand(entries[section], keys, section.removesuffix("s"))


def make_strategy(
    combination: Combination, kind: str, registry: Registry[Any], default: str
) -> tuple[Any, dict[str, Any]]:
    """Build a scorer, selector, decoder or task from ``kind`` (a name, or a mapping with ``name``) and ``kind.OPTION``.

    Returns the strategy, and its registered name and every option as plain values.
    """
    located = combination.get(kind, ConfigValue(default, "default"))
    options: dict[str, ConfigValue] = {}
    if isinstance(located.value, dict):
        options = dict(located.value)
        if "name" not in options:
            raise located.error(f"a {kind} with options needs its name: {{name: {default or 'NAME'}, OPTION: VALUE}}")
        name = check_located(options.pop("name"), str, f"name of the {kind}")  # what remains are options
    else:
        name = check_located(located, str, kind)
    for key, value in combination.items():
        if key.startswith(f"{kind}."):
            if key.removeprefix(f"{kind}.") in options:
                raise value.error(f"{key} is set twice; keep one of the two")
            options[key.removeprefix(f"{kind}.")] = value
    strategy = build_located(lambda values: registry.build(name, values), options, located)
    return strategy, {"name": name, **dataclasses.asdict(strategy)}


def make_cell(combination: Combination, section: ConfigValue) -> SweepCell:
    """Build the cell of a combination. It always compresses, unless the file has another `compress`.

    `config` enters the hashes of stored runs, so options that were added later are stored only where they are not
    their defaults, and others in the form that they had first.
    """
    strategies: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for kind, (registry, default) in STRATEGIES.items():
        strategies[kind], config[kind] = make_strategy(combination, kind, registry, default)
    rest = {key: value for key, value in combination.items() if key.partition(".")[0] not in (*STRATEGIES, "target")}
    rule = {key.removeprefix("target."): value for key, value in combination.items() if key.startswith("target.")}
    base = {"compress": COMPRESS, **strategies}
    base["target_sparse"] = build_located(target_rule, rule, section) if rule else None
    options = build_located(lambda values: RunOptions(**{**base, **values}), rest, section)
    config |= {name: getattr(options, name) for name in CELL_FIELDS if name not in STRATEGIES}
    scorer: Any = options.scorer  # a dataclass, although its base class is none
    config["scorer"] = {"name": config["scorer"]["name"], **dataclasses.asdict(scorer)}
    # under the key that all stored runs have
    config["sparse"] = options.target_sparse and dataclasses.asdict(options.target_sparse)
    config["rotate"] = options.rotated  # resolved, so that a default and the same value named are one run
    if isinstance(options.decode, Greedy):  # the only decoder of older runs
        del config["decode"]
    if not options.mark_omitted:  # likewise
        del config["mark_omitted"]
    if isinstance(options.scorer, ReadingScorer):  # `sparse` was once two options, `blocks` and `alpha`
        record = options.scorer.sparse.recorded()
        sparse_fields = {name: value for name, value in record.items() if name != "blocks" or value is not None}
        config["scorer"] = (
            config["scorer"] | sparse_fields | {"alpha": 0.1 if record["alpha"] is None else record["alpha"]}
        )
        del config["scorer"]["sparse"]
    return SweepCell(options, config)


def make_thinking(combination: Combination) -> tuple[Thinking, dict[str, str]]:
    """Return the thinking options of a task, and its keys and values for the name and hash; none if thinking is off."""
    keys = {"mode": "thinking", "effort": "reasoning_effort"}
    options = {name: combination[key] for name, key in keys.items() if key in combination}
    where = next(iter(options.values()), ConfigValue(None, "default"))
    thinking = build_located(
        lambda values: from_mapping(Thinking, {"mode": "off", **values}, "thinking"), options, where
    )
    return thinking, thinking_facts(thinking)


def make_runs(
    combination: Combination,
    section: ConfigValue,
    pair: Pair,
    cells_of: Callable[[str], tuple[SweepCell, ...]],
    full: bool,
) -> Iterable[Run]:
    """Split the examples of a task and length into runs of at most `per_run`, in the cells for that task."""
    if "task" not in combination:
        raise section.error("a task needs its name: task: NAME")
    task, config = make_strategy(combination, "task", TASKS, "")
    numbers = natural_numbers(combination, task) if isinstance(task, NaturalTask) else read_numbers(combination)
    thinking, facts = make_thinking(combination)
    words = [strategy_label(TASKS, task), *(f"{name}={value}" for name, value in facts.items())]
    spec = TaskSpec(task, " ".join(words), {**config, **facts}, thinking)
    end, cells = numbers["first"] + numbers["examples"], cells_of(config["name"])
    for first in range(numbers["first"], end, numbers["per_run"]):
        count, tokens = min(numbers["per_run"], end - first), numbers["tokens"]
        if isinstance(task, NaturalTask):
            tokens, full = task.length(first, count), task.answers
        yield Run(pair, spec, tokens, first, count, cells, full)


def read_numbers(combination: Combination, known: Container[str] = ()) -> dict[str, int]:
    """Read the numbers of a task by key and check their limits; those that are omitted and in `known` are 0."""
    numbers = {name: 0 if field.value is REQUIRED else field.value for name, field in NUMBER_FIELDS.items()}
    for key, field in NUMBER_FIELDS.items():
        if key in combination:
            numbers[key] = check_located(combination[key], Annotated[field.hint, field.option], key)
        elif field.value is REQUIRED and key not in known:
            raise combination["task"].error(f"the task needs {key}: a number")
    return numbers


def natural_numbers(combination: Combination, task: NaturalTask) -> dict[str, int]:
    """Read the numbers of task natural, whose questions can be counted; by default `examples` is all of them."""
    if "tokens" in combination:
        raise combination["tokens"].error("documents of task natural have their own lengths; omit tokens")
    numbers = read_numbers(combination, ("tokens", "examples"))
    try:
        n = len(task.all_questions)
    except ConfigError as error:
        raise combination["task"].error(error) from None
    if (end := numbers["first"] + max(numbers["examples"], 1)) > n:
        key = "examples" if "examples" in combination else "first"
        raise combination[key].error(f"there are {n} questions, fewer than the {end} that are needed; lower {key}")
    return numbers | {"examples": numbers["examples"] or n - numbers["first"]}
