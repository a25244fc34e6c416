"""Check that a task discriminates between scorers: words and chance do not help, and the evidence alone suffices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sp.errors import ConfigError
from sp.evals import TASKS, Task
from sp.evals.run import label
from sp.selection import SELECTORS, Selector
from sp.studies.board.entries import BoardEntry, BoardRow, make_board
from sp.studies.sweep.conduct import SweepPlan
from sp.studies.sweep.config_values import ConfigValue
from sp.studies.sweep.keys import Device
from sp.studies.sweep.store import read_results
from sp.studies.sweep.sweep import Pair, Run, Sweep, TaskSpec, make_cell, with_drafter

SUITE = "unmatched"  # tasks whose questions share no words with their evidence
FULL = "full"
NEEDED, ALLOWED, ABOVE_CHANCE = 0.9, 0.1, 0.05
"""Bounds of the share of correct answers: least with the evidence, most by shared words, and most by chance above the
keep ratio."""


@dataclass(frozen=True)
class Bar:
    """Bound of the accuracy of a scorer.

    `scorer` is its name, `FULL` for the full prefill; `bound` a share of correct answers, the least one if `least`,
    else the most.
    """

    scorer: str
    bound: float
    least: bool

    def met(self, accuracy: float | None) -> bool:
        """Return True if an accuracy is within the bound; one that was not measured is not."""
        if accuracy is None:
            return False
        # A share that equals the bound must pass although neither is exact in binary.
        return accuracy >= self.bound - 1e-9 if self.least else accuracy <= self.bound + 1e-9


def bars(keep: float) -> tuple[Bar, ...]:
    """Return the five bars at a keep ratio, in the order of the table."""
    return (
        Bar(FULL, NEEDED, True),
        Bar("oracle", NEEDED, True),
        Bar("random", keep + ABOVE_CHANCE, False),
        Bar("lexical", ALLOWED, False),
        Bar("bm25", ALLOWED, False),
    )


@dataclass(frozen=True)
class Verdict:
    """Results of a task and length. `entries` are by scorer, `FULL` for the full prefill, without those not run."""

    task: str
    tokens: int
    keep: float
    entries: Mapping[str, BoardEntry]

    @property
    def fails(self) -> tuple[str, ...]:
        """Scorers of the bars that are not met."""
        accuracies = {name: entry.accuracy for name, entry in self.entries.items()}
        return tuple(bar.scorer for bar in bars(self.keep) if not bar.met(accuracies.get(bar.scorer)))

    @property
    def measured(self) -> bool:
        """True if any example was read."""
        return any(entry.accuracy is not None for entry in self.entries.values())

    @property
    def forced(self) -> int:
        """Most tokens that a scorer's last example had to select whatever their scores: question, markup and ends."""
        rows = [entry.row for entry in self.entries.values() if entry.keep is not None]
        return max((int(row.get("forced_tokens") or 0) for row in rows), default=0)

    @property
    def crowded(self) -> bool:
        """True if forced tokens are at least half of the selected ones, so that scorers have little to choose."""
        return 2 * self.forced >= self.keep * self.tokens

    @property
    def discriminating(self) -> bool:
        """True if all bars are met."""
        return not self.fails


def chosen_tasks(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks, or those of the suite if there are none. ConfigError if the suite is empty."""
    chosen = list(tasks) or [TASKS.build(name, {"seed": seed}) for name in TASKS if TASKS.class_of(name).suite == SUITE]
    if not chosen:
        raise ConfigError(f"no task of the suite {SUITE} is registered; name tasks in --tasks")
    return chosen


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
    """Return the sweep that measures all bars: the full prefill, and each bar's scorer at one keep ratio.

    It has `n` examples of every task and length.
    """
    options = {"name": SELECTORS.name_of(selector), **asdict(selector)}  # type: ignore[call-overload]
    selector_values = {key: ConfigValue(value, "--selector") for key, value in options.items()}
    settings = {
        "selector": ConfigValue(selector_values, "--selector"),
        "keep_ratio": ConfigValue(keep, "--keep-ratio"),
        "seed": ConfigValue(seed, "--seed"),
    }
    scorers = [ConfigValue(bar.scorer, "a bar") for bar in bars(keep) if bar.scorer != FULL]
    cells = tuple(make_cell({"scorer": scorer, **settings}, ConfigValue({}, "--keep-ratio")) for scorer in scorers)
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
    """Return a verdict for every task and length of a finished plan, in its order, from its own examples only."""
    rows = read_results([plan.path]).rows if plan.path.exists() else {}
    rows_of_plan = [
        BoardRow(row, plan.facts[job.run.pair].models)
        for job in plan.jobs
        for run in (*job.completes, job.hash)
        for row in rows.get(run, [])
        if row["cell"] < 0 or row["keep_ratio"] == keep
    ]
    names = {bar.scorer for bar in bars(keep)} - {FULL}
    entries_by_task: dict[tuple[str, int], dict[str, BoardEntry]] = {
        (job.run.spec.name, job.run.tokens): {} for job in plan.jobs
    }
    for entry in make_board(rows_of_plan, {}).entries:
        name = FULL if entry.kind == "full" else str(entry.row["scorer"])
        if name in names | {FULL}:
            entries_by_task[entry.task, entry.tokens][name] = entry
    return [Verdict(task, tokens, keep, entries) for (task, tokens), entries in entries_by_task.items()]
