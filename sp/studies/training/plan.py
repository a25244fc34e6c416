"""What a data file of `sp train scorer` asks for: checked in full, with line numbers, before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp.config import Tokens
from sp.errors import ConfigError, short, unknown_name
from sp.evals import TASKS, Task
from sp.evals.run import label
from sp.scoring import SCORERS, Scorer
from sp.scoring.trained.base import TrainedScorer
from sp.studies.sweep.located import Located, build_located, check_located, read_yaml
from sp.studies.sweep.pairs import located_model
from sp.studies.sweep.sweep import make_strategy

EVIDENCE = "evidence"
TOP = 0.02
"""Share of a document's chunks that count as evidence where an oracle says which."""
LIMITS = {"n": (1, 100_000), "held_out": (0, 100_000), "seed": (0, (1 << 31) - 1)}
LONGEST = 1 << 21


@dataclass(frozen=True)
class Labels:
    """Where the truth comes from.

    `scorer`: an oracle, whose best chunks count as evidence; None takes the evidence that examples name; `top`: share
    of the document's chunks that count.
    """

    scorer: Scorer | None = None
    top: float = TOP

    def __str__(self) -> str:
        return EVIDENCE if self.scorer is None else f"{label(SCORERS, self.scorer)}, top {self.top:g}"


@dataclass(frozen=True)
class TrainPlan:
    """A checked data file.

    Parameters
    ----------
    kind : str
        Registered name of the scorer to train.
    options : object
        Its options of learning.
    tasks : dict of str to Task
        By name with the options that were set; those left out among them.
    leave_out : tuple of str
        Tasks that are judged by and not learnt from.
    n, held_out : int
        Examples of each task and length to learn from, and further ones to judge by.
    seed : int
        Of tasks that name none, and of the fit.
    drafter, target : Path, optional
        As in a sweep's pairs. Of the target only tokens and chat template matter, unless the labels read it.
    """

    kind: str
    options: Any
    tasks: Mapping[str, Task]
    leave_out: tuple[str, ...]
    lengths: tuple[int, ...]
    n: int
    held_out: int
    seed: int
    labels: Labels
    drafter: Path | None
    target: Path | None

    @property
    def scorer(self) -> TrainedScorer:
        """A scorer of the kind, which reads as `sp run` lets it."""
        return build_trained(self.kind)

    @property
    def learnt(self) -> tuple[str, ...]:
        """Tasks that are learnt from."""
        return tuple(name for name in self.tasks if name not in self.leave_out)


DEFAULTS: dict[str, Any] = {"n": 20, "held_out": 5, "seed": 1, "lengths": [1024, 2048, 4096], "leave_out": []}
KEYS = ("kind", "tasks", "options", "labels", "drafter", "target", *DEFAULTS)


def trained_kinds() -> tuple[str, ...]:
    """Registered scorers that are trained.

    Examples
    --------
    >>> trained_kinds()
    ('cross_attention', 'lines', 'probe')
    """
    return tuple(name for name in SCORERS if issubclass(SCORERS.class_of(name), TrainedScorer))


def build_trained(kind: str, weights: str = "") -> TrainedScorer:
    """A trained scorer by name, its attention left to device and length; ConfigError if it is none."""
    if kind not in trained_kinds():
        raise unknown_name("kind of trained scorer", kind, trained_kinds())
    found = SCORERS.build(kind, {"weights": weights, "sparse": "auto"})
    assert isinstance(found, TrainedScorer)
    return found


def load_plan(path: Path) -> TrainPlan:
    """Read a data file; ConfigError, with the line, for whatever is wrong."""
    root = read_yaml(path)
    given = root.mapping()
    for key, value in given.items():
        if key not in KEYS:
            raise value.error(unknown_name("key of a training", key, KEYS))
    for key in ("kind", "tasks"):
        if key not in given:
            raise ConfigError(f"{path.name}: {key} is missing; see sp train scorer --help")
    kind = check_located(given["kind"], str, "kind")
    scorer = build_located(lambda values: build_trained(values["kind"]), {"kind": given["kind"]}, given["kind"])
    numbers = {name: _number(given, name, low, high) for name, (low, high) in LIMITS.items()}
    tasks = _tasks(given["tasks"], numbers["seed"])
    own = given["options"].mapping() if "options" in given else {}
    return TrainPlan(
        kind=kind,
        options=build_located(lambda values: scorer.options(values, str(kind)), own, root),
        tasks=tasks,
        leave_out=_left_out(given, tasks),
        lengths=_lengths(given),
        **numbers,
        labels=_labels(given["labels"]) if "labels" in given else Labels(),
        drafter=_file(given, "drafter"),
        target=_file(given, "target"),
    )


def without(plan: TrainPlan, name: str) -> TrainPlan:
    """The same plan with only this task left out; ConfigError if nothing is left to learn from."""
    if set(plan.tasks) <= {name}:
        raise ConfigError(f"tasks: {name} is the only one, so none can be left out; name two or more")
    return dataclasses.replace(plan, leave_out=(name,))


def _number(given: Mapping[str, Located], name: str, low: int, high: int) -> int:
    if name not in given:
        return int(DEFAULTS[name])
    value = int(check_located(given[name], int, name))
    if not low <= value <= high:
        raise given[name].error(f"{name} must be from {low} to {high}, not {value}")
    return value


def _lengths(given: Mapping[str, Located]) -> tuple[int, ...]:
    if "lengths" not in given:
        return tuple(DEFAULTS["lengths"])
    found = []
    for item in given["lengths"].items():
        value = check_located(item, Tokens, "length")
        if not 1 <= value <= LONGEST:
            raise item.error(f"a length must be from 1 to {LONGEST:,} tokens, not {value}")
        found.append(value)
    return tuple(dict.fromkeys(found))


def _tasks(section: Located, seed: int) -> dict[str, Task]:
    """Tasks by label, each with the file's seed unless it names one: never the seed 0 that evaluations begin with."""
    found: dict[str, Task] = {}
    for item in [each for written in section.items() for each in _suite(written)]:
        task, _ = make_strategy({"task": item}, "task", TASKS, "")
        name = label(TASKS, task)
        fields = {field.name for field in dataclasses.fields(task)}
        if "seed" in fields and not (isinstance(item.value, dict) and "seed" in item.value):
            task = dataclasses.replace(task, seed=seed)
        if name in found:
            raise item.error(f"task {name} stands here a second time")
        found[name] = task
    return found


def _suite(item: Located) -> list[Located]:
    """All tasks of a suite for ``{suite: NAME}``; the item itself where it names a task."""
    if not (isinstance(item.value, dict) and set(item.value) == {"suite"}):
        return [item]
    wanted = check_located(item.value["suite"], str, "suite")
    suites = {name: TASKS.class_of(name).suite for name in TASKS}
    if wanted not in suites.values() or not wanted:
        raise item.error(unknown_name("suite", wanted, {suite for suite in suites.values() if suite}))
    return [Located(name, item.where) for name, suite in suites.items() if suite == wanted]


def _left_out(given: Mapping[str, Located], tasks: Mapping[str, Task]) -> tuple[str, ...]:
    if "leave_out" not in given:
        return ()
    section = given["leave_out"]
    items = section.items() if isinstance(section.value, list) and section.value else [section]
    names = []
    for item in items if section.value != [] else []:
        name = check_located(item, str, "leave_out")
        if name not in tasks:
            raise item.error(unknown_name("task to leave out", name, tasks))
        names.append(name)
    if set(names) == set(tasks):
        raise section.error("every task is left out, so there is nothing to learn from")
    return tuple(names)


def _labels(section: Located) -> Labels:
    if section.value == EVIDENCE:
        return Labels()
    if not isinstance(section.value, dict):
        raise section.error(
            f"labels are {EVIDENCE}, or {{scorer: NAME, top: SHARE}}, not {short(repr(section.plain()))}"
        )
    for key, value in section.value.items():
        if key != "top" and key.partition(".")[0] != "scorer":
            raise value.error(unknown_name("key of labels", key, ["scorer", "scorer.OPTION", "top"]))
    if "scorer" not in section.value:
        raise section.error("labels need the scorer that is their oracle: {scorer: NAME}")
    top = float(check_located(section.value["top"], float, "top")) if "top" in section.value else TOP
    if not 0 < top < 1:
        raise section.value["top"].error(f"top must be above 0 and below 1, not {top:g}")
    given = {key: value for key, value in section.value.items() if key != "top"}
    return Labels(make_strategy(given, "scorer", SCORERS, "")[0], top)


def _file(given: Mapping[str, Located], role: str) -> Path | None:
    if role not in given:
        return None
    return located_model(given[role], role)
