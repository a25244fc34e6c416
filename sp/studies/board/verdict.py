"""Whether a task tells scorers apart: words do not help, chance does not help, and the evidence alone suffices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sp.errors import ConfigError
from sp.evals import TASKS, Task
from sp.evals.run import label
from sp.selection import SELECTORS, Selector
from sp.studies.board.entries import Entry, Told, make_board
from sp.studies.sweep.conduct import SweepPlan
from sp.studies.sweep.keys import Device
from sp.studies.sweep.located import ConfigValue
from sp.studies.sweep.store import read_results
from sp.studies.sweep.sweep import Pair, Run, Sweep, TaskSpec, make_cell, with_drafter

SUITE = "unmatched"  # tasks whose questions share no words with their evidence
FULL = "full"
NEEDED, ALLOWED, ABOVE_CHANCE = 0.9, 0.1, 0.05
"""Shares of right answers: what the evidence must give, what words may give, and chance over the keep ratio."""


@dataclass(frozen=True)
class Bar:
    """What one way of reading must reach, or must not exceed. `scorer`: name of the scorer; `FULL` for the full
    prefill; `bound`: share of right answers; `least`: whether the bound is the least, and not the most."""

    scorer: str
    bound: float
    least: bool

    def met(self, accuracy: float | None) -> bool:
        """Whether a measured share is good; what was not measured is not."""
        if accuracy is None:
            return False
        return accuracy >= self.bound - 1e-9 if self.least else accuracy <= self.bound + 1e-9


def bars(keep: float) -> tuple[Bar, ...]:
    """The five bars at a keep ratio, in the order they are shown."""
    return (
        Bar(FULL, NEEDED, True),
        Bar("oracle", NEEDED, True),
        Bar("random", keep + ABOVE_CHANCE, False),
        Bar("lexical", ALLOWED, False),
        Bar("bm25", ALLOWED, False),
    )


@dataclass(frozen=True)
class Verdict:
    """What a task and length came to. `entries`: by scorer, `FULL` for the full prefill; those that were not run are
    missing."""

    task: str
    tokens: int
    keep: float
    entries: Mapping[str, Entry]

    @property
    def fails(self) -> tuple[str, ...]:
        """Names of the bars that are not met."""
        found = {name: entry.accuracy for name, entry in self.entries.items()}
        return tuple(bar.scorer for bar in bars(self.keep) if not bar.met(found.get(bar.scorer)))

    @property
    def measured(self) -> bool:
        """Whether any example was read at all."""
        return any(entry.accuracy is not None for entry in self.entries.values())

    @property
    def forced(self) -> int:
        """Most tokens that a scorer's last example had to keep whatever their scores: question, markup and ends."""
        rows = [entry.row for entry in self.entries.values() if entry.keep is not None]
        return max((int(row.get("forced_tokens") or 0) for row in rows), default=0)

    @property
    def crowded(self) -> bool:
        """Whether these are half of what is kept or more, so that scorers have little to choose."""
        return 2 * self.forced >= self.keep * self.tokens

    @property
    def discriminating(self) -> bool:
        """Whether all are."""
        return not self.fails


def chosen_tasks(tasks: Sequence[Task], seed: int) -> list[Task]:
    """The tasks, or where there are none those of the suite. ConfigError: the suite is empty."""
    found = list(tasks) or [TASKS.build(name, {"seed": seed}) for name in TASKS if TASKS.class_of(name).suite == SUITE]
    if not found:
        raise ConfigError(f"no task of the suite {SUITE} is registered; name tasks in --tasks")
    return found


def plan_runs(
    tasks: Sequence[Task],
    lengths: Iterable[int],
    n: int,
    keep: float,
    pair: Pair,
    *,
    selector: Selector,
    seed: int = 0,
    per_run: int = 10,
    device: Device = "auto",
) -> Sweep:
    """The sweep that measures what verdicts rest on: the full prefill, and each bar's scorer at one keep ratio, `n`
    examples of every task and length."""
    selecting = {"name": SELECTORS.name_of(selector), **asdict(selector)}  # type: ignore[call-overload]
    chosen = ConfigValue({key: ConfigValue(value, "--selector") for key, value in selecting.items()}, "--selector")
    settings = {
        "selector": chosen,
        "keep_ratio": ConfigValue(keep, "--keep-ratio"),
        "seed": ConfigValue(seed, "--seed"),
    }
    named = [{"scorer": ConfigValue(bar.scorer, "a bar"), **settings} for bar in bars(keep) if bar.scorer != FULL]
    cells = tuple(make_cell(each, ConfigValue({}, "--keep-ratio")) for each in named)
    pair = with_drafter(pair, [type(cell.options.scorer) for cell in cells])
    specs = [
        TaskSpec(task, label(TASKS, task), {"name": task.name, **asdict(task)})  # type: ignore[call-overload]
        for task in tasks
    ]
    runs = tuple(
        Run(pair, spec, tokens, first, min(per_run, n - first), cells, True)
        for tokens in lengths
        for spec in specs
        for first in range(0, n, per_run)
    )
    return Sweep("discriminates", runs, Path(), device, False)


def verdicts(plan: SweepPlan, keep: float) -> list[Verdict]:
    """One for every task and length of a plan that was carried out, in its order, by its own examples alone."""
    rows = read_results([plan.path]).rows if plan.path.exists() else {}
    told = [
        Told(row, plan.facts[job.run.pair].models)
        for job in plan.jobs
        for run in (*job.completes, job.hash)
        for row in rows.get(run, [])
        if row["cell"] < 0 or row["keep_ratio"] == keep
    ]
    names = {bar.scorer for bar in bars(keep)} - {FULL}
    found: dict[tuple[str, int], dict[str, Entry]] = {(job.run.spec.name, job.run.tokens): {} for job in plan.jobs}
    for entry in make_board(told, {}).entries:
        name = FULL if entry.kind == "full" else str(entry.row["scorer"])
        if name in names | {FULL}:
            found[entry.task, entry.tokens][name] = entry
    return [Verdict(task, tokens, keep, entries) for (task, tokens), entries in found.items()]
