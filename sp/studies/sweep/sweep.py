"""What a sweep file asks for: checked in full, with line numbers, and expanded to runs before anything is loaded.

A run is one block of examples of one task and length, read by one pair, in every cell: cells with one scorer share
its scores, so keep ratios, selectors, positions and KV formats cost no drafter pass of their own. A file has the
sections `pairs` (the embedded one if left out), `tasks` and `cells`, or `parts`, a list of such with a `name` each.
In `cells`, ``{task}`` stands for the registered name of the task that is run: weights that never saw it, for one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from sp.chat import Thinking
from sp.config import REQUIRED, Option, Registry, Tokens, fields_of, from_mapping
from sp.decode import Greedy, Speculative
from sp.errors import ConfigError, GGUFError, unknown_name
from sp.evals import TASKS, Task
from sp.evals.base import WITHOUT
from sp.evals.natural.questions import NaturalTask
from sp.evals.run import label as strategy_label
from sp.evals.run import thinking_facts
from sp.hub import model_path
from sp.keywords import present_name
from sp.plugins import find_plugin
from sp.scoring import Scorer
from sp.scoring.base import ReadingScorer
from sp.session import RunOptions
from sp.session.loaded import default_drafter, embedded
from sp.session.options import BY_NAME, ModelOptions
from sp.studies.sweep.located import (
    Combination,
    Located,
    build_located,
    check_located,
    expand,
    for_task,
    in_section,
    override,
    present_keys,
    read_yaml,
)

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class TopKeys:
    """At the top of a file.

    Parameters
    ----------
    name : str
        What the sweep is called; the name of the file without its ending if left out.
    out : str
        Folder of rows and report; sp-sweep/NAME if left out.
    device : {"auto", "cpu", "cuda"}
        Where models run; `auto` is the GPU where there is one.
    full : bool
        Also read every prompt whole.
    report : bool
        Write tables and pictures once all runs are done.
    plugins : str or list of str
        Python files or modules with strategies and tasks of your own; a file is looked for where the sweep is started,
        then beside the sweep file.
    """

    name: str = ""
    out: str = ""
    device: Device = "auto"
    full: bool = True
    report: bool = False
    plugins: str | tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskKeys:
    """In `tasks`: what is asked.

    Parameters
    ----------
    task : str
        Registered name.
    tokens : int
        Length of the prompts, such as 8k; not of task natural, whose documents are as long as they are.
    examples : int
        How many; of task natural all questions if left out.
    first : int
        Number of the first one.
    per_run : int
        Most examples of one run, which is the least that is done again after an interruption.
    thinking : {"off", "on", "auto"}
        What the target is asked of thinking.
    reasoning_effort : str
        How much, where the chat template takes it.
    """

    task: str
    tokens: Annotated[Tokens, Option(least=1, most=1 << 24)]
    examples: Annotated[int, Option(least=1, most=1_000_000)]
    first: Annotated[int, Option(least=0, most=1_000_000_000)] = 0
    per_run: Annotated[int, Option(least=1, most=1_000_000)] = 10
    thinking: Literal["off", "on", "auto"] = "off"
    reasoning_effort: str | None = None


@dataclass(frozen=True)
class Pair(ModelOptions):
    """Files of the models, and what is asked of them.

    Parameters
    ----------
    speculator : Path, optional
        DFlash draft model of the target, for cells of speculative decoding; the embedded target has its own.
    """

    speculator: Path | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of RoPE and arithmetic, where it is not what both are without, as `Pipeline.open` takes it."""
        names = ("target_rope", "drafter_rope", "precision", "drafter_precision")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Pair, name)}


OF_PAIRS = {one.name: one for one in fields_of(Pair)}


def make_pair(each: Combination) -> Pair:
    """The model files of a combination, which must exist, and what is asked of them."""
    found: dict[str, Any] = {}
    for name, value in each.items():
        a_file = OF_PAIRS[name].hint == Path | None
        found[name] = located_model(value, name) if a_file else check_located(value, OF_PAIRS[name].hint, name)
    return Pair(**found)


def located_model(value: Located, role: str) -> Path:
    """The path of a model's file, which must exist, or the name of a known model that was fetched."""
    path = Path(check_located(value, str, role))
    try:
        there = model_path(path).is_file()
    except GGUFError as error:
        raise value.error(error) from None
    if not there:
        raise value.error(f"{role} {path} is not a file; give the path of a GGUF file, or leave it out")
    return path


def with_drafter(pair: Pair, scorers: Iterable[type[Scorer]]) -> Pair:
    """The pair, where no drafter of another target than the embedded one is named, with that of `default_drafter`."""
    if pair.target is None or pair.drafter is not None:
        return pair
    return replace(pair, drafter=default_drafter(pair.target, scorers))


def with_speculator(pair: Pair, speculates: bool, cells: Located) -> Pair:
    """Return the pair with a draft model if cells are speculative (the embedded target has its own), else without."""
    if speculates and pair.speculator is None and pair.target is not None:
        raise cells.error(f"speculative cells need a draft model for {pair.target.name}; add pairs: speculator: FILE")
    return replace(pair, speculator=(pair.speculator or embedded("draft")) if speculates else None)


@dataclass(frozen=True)
class Cell:
    """One way to read a prompt. `config`: every option in force, plain, as it enters the hash of a run."""

    options: RunOptions
    config: Mapping[str, Any]


@dataclass(frozen=True)
class TaskSpec:
    """A task with options, by name and those that differ from its defaults, e.g. ``"needle depth=0.5"``; `config` has
    all, plain. What the target is asked of thinking is part of both where it is not off."""

    task: Task
    name: str
    config: Mapping[str, Any]
    thinking: Thinking = WITHOUT


@dataclass(frozen=True)
class Run:
    """Examples ``first`` to ``first + count - 1`` of one task and length, in every cell. `part` names the part of the
    file it belongs to; it decides nothing."""

    pair: Pair
    spec: TaskSpec
    tokens: int
    first: int
    count: int
    cells: tuple[Cell, ...]
    full: bool
    part: str = ""

    @property
    def label(self) -> str:
        """What `--only` matches: ``task/tokens/first``, after the target's name if it is not the embedded one."""
        pair = f"{self.pair.target.stem}/" if self.pair.target else ""
        return f"{pair}{self.spec.name}/{self.tokens}/{self.first}"

    def config(self, models: Mapping[str, Any], files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Everything that decides what this run finds, the models by content. `models`: role to the SHA-256 of its
        file; `files`: SHA-256 of the files that scorers name."""
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
    """A checked sweep: its runs in the order written, where rows go, and whether a report follows."""

    name: str
    runs: tuple[Run, ...]
    out: Path
    device: Device
    report: bool


def config_hash(config: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


SECTIONS = ("pairs", "tasks", "cells")
TOP, OF_TASKS = ({one.name: one for one in fields_of(keys)} for keys in (TopKeys, TaskKeys))
WRITTEN = {one.name: one for one in fields_of(RunOptions) if one.option.written}
STRATEGIES = {name: (registry, str(WRITTEN[name].default)) for name, registry in BY_NAME.items()}
COMPRESS = "always"  # what cells do unless the file says otherwise
CELL_KEYS = (*WRITTEN, *(f"{name}." for name in STRATEGIES))
MOST_RUNS = 100_000
MOST_CELLS = 1_000_000  # of all runs together, as each is checked and hashed with its cells
TASK_KEYS = (*OF_TASKS, "task.")
NUMBERS = {name: one for name, one in OF_TASKS.items() if name in ("tokens", "examples", "first", "per_run")}


def load_sweep(path: Path, settings: Sequence[str] = (), out: Path | None = None) -> Sweep:
    """Read a sweep file with ``--set`` overrides, and perhaps another folder for what it finds. ConfigError for
    whatever is wrong, with the file's line."""
    root = in_section(read_yaml(path), "pairs", partial(present_keys, known=OF_PAIRS))
    for setting in settings:
        root = apply_setting(root, setting)
    entries = root.mapping()
    if "plugins" in entries:  # first, as all else may name what they register
        listed = entries["plugins"]
        for each in listed.value if isinstance(listed.value, list) else [listed]:
            named = check_located(each, str, "plugins")
            try:
                find_plugin(named, path.parent).load()
            except ConfigError as error:
                raise each.error(error) from None
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
    if setting.startswith("pairs."):
        name, equals, value = setting.removeprefix("pairs.").partition("=")
        setting = f"pairs.{present_name(name, OF_PAIRS, 'pairs.{}'.format)}{equals}{value}"
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
        cells = (make_cell(for_task(each, task), part["cells"]) for each in written)
        return tuple({config_hash(cell.config): cell for cell in cells}.values())  # `--set` can bring about repetitions

    for pair in pairs:
        for each in _combinations(part, "tasks"):
            for run in make_runs(each, part["tasks"], pair, cells_of, full):
                speculates = any(isinstance(cell.options.decode, Speculative) for cell in run.cells)
                ready = with_drafter(pair, [type(cell.options.scorer) for cell in run.cells])
                yield dataclasses.replace(run, part=name, pair=with_speculator(ready, speculates, part["cells"]))


def _combinations(entries: Mapping[str, Located], section: str) -> list[Combination]:
    keys = {"pairs": OF_PAIRS, "tasks": TASK_KEYS, "cells": CELL_KEYS}[section]
    return expand(entries[section], keys, section.removesuffix("s"))


def make_strategy(each: Combination, kind: str, registry: Registry[Any], default: str) -> tuple[Any, dict[str, Any]]:
    """A scorer, selector, decoder or task from ``kind`` (a name, or a mapping with ``name``) and ``kind.OPTION`` keys.
    Returns the built strategy, and its registered name and every option, plain."""
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
    scorer: Any = options.scorer  # a dataclass, which its base does not say
    config["scorer"] = {"name": config["scorer"]["name"], **dataclasses.asdict(scorer)}
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


def make_thinking(each: Combination) -> tuple[Thinking, dict[str, str]]:
    """What a task asks of thinking, and the keys that say so where it is not what they are without: off."""
    named = {"mode": "thinking", "effort": "reasoning_effort"}
    given = {name: each[key] for name, key in named.items() if key in each}
    where = next(iter(given.values()), Located(None, "default"))
    thinking = build_located(lambda values: from_mapping(Thinking, {"mode": "off", **values}, "thinking"), given, where)
    return thinking, thinking_facts(thinking)


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
        n = len(task.all_questions)
    except ConfigError as error:
        raise each["task"].error(error) from None
    if (end := numbers["first"] + max(numbers["examples"], 1)) > n:
        key = "examples" if "examples" in each else "first"
        raise each[key].error(f"question {end} is asked for, but there are {n}; lower {key}")
    return numbers | {"examples": numbers["examples"] or n - numbers["first"]}
