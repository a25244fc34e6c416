"""Carry out a sweep, from its checked file to rows on disk: find the remaining runs, estimate their time, run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench.record import commit
from sp.cluster import join
from sp.errors import ConfigError
from sp.evals.natural.questions import NaturalTask
from sp.kernels.device import pick_device
from sp.kernels.machine import machine_facts, machine_slug
from sp.models import ModelConfig
from sp.models.network.cost import flops
from sp.plugins import loaded_plugins
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.selection import token_budget
from sp.session.device_memory import Where
from sp.session.measured import check_machine
from sp.studies.sweep.executor import ActorPool, GPUPool, Outcome, RunWorker, run_here, run_on
from sp.studies.sweep.provenance import PairFacts, pair_facts
from sp.studies.sweep.reuse import EarlierCells, files_of
from sp.studies.sweep.store import Store, SweepResults, check_cells, read_results, result_files, session_line
from sp.studies.sweep.sweep import Pair, Run, Sweep, SweepCell, config_hash, distinct


@dataclass(frozen=True)
class Work:
    """Amount of work of a run: floating-point operations of all prefills, and number of answers.

    Rows count as answers where the task asks for none.
    """

    flop: float
    answers: int


@dataclass(frozen=True)
class Estimate:
    """Linear estimate of seconds: a rate for the prefills, and a cost of each answer (decoding, text, launches).

    `source`: the measurements that it is from, for messages.
    """

    seconds_per_flop: float
    seconds_per_answer: float
    source: str

    def seconds(self, work: Work) -> float:
        """Return the predicted seconds."""
        return self.seconds_per_flop * work.flop + self.seconds_per_answer * work.answers


TYPICAL = {"cpu": Estimate(1e-11, 0.1, "a laptop"), "cuda": Estimate(2e-15, 0.03, "an H200")}
"""Rough rates that weigh small runs against large ones before anything is measured; not for predicting a time."""


def work_of(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig) -> Work:
    """Return the work of a run from its stored configuration.

    Cells that share a scorer share one scoring: a pass of the drafter, the scorer's own count if it runs on the
    target, or nothing. In task natural the target reads only if it answers.
    """
    tokens, count = config["tokens"], config["count"]
    scorers = {repr(cell["scorer"]): cell["scorer"] for cell in config["cells"]}
    flop = sum(_scoring(scorer, target, drafter, tokens) for scorer in scorers.values())
    task = config.get("task", {})
    if task.get("name") != "natural" or task.get("answers"):
        flop += flops(target, tokens) if config.get("full") else 0.0
        flop += sum(flops(target, token_budget(cell["keep_ratio"], tokens)) for cell in config["cells"])
    return Work(count * flop, count * (len(config["cells"]) + bool(config.get("full"))))


def _scoring(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig, tokens: int) -> float:
    """Return the operations of a stored scorer; one of a plugin that is not loaded counts as a pass of the drafter."""
    name = config["name"]
    kind = SCORERS.class_of(name) if name in SCORERS else Scorer
    if issubclass(kind, ModelFreeScorer):
        return 0.0
    if not kind.reads_target:
        return flops(drafter, tokens)
    options = {key: value for key, value in config.items() if key != "name"}
    return SCORERS.build(name, options).flops(target, tokens)


def fit(works: Sequence[Work], seconds: Sequence[float], source: str) -> Estimate:
    """Fit the two rates to measured runs by least squares, neither of them negative.

    Errors are relative, so that short runs weigh as much as long ones.
    """
    # Each row is divided by its seconds, so the right-hand side is ones and residuals are relative errors. Columns
    # are scaled to a maximum of 1, since operations are some 1e12 times as many as answers.
    measured = np.maximum(np.asarray(seconds, np.float64), 1e-9)
    table = np.array([[work.flop, work.answers] for work in works], np.float64) / measured[:, None]
    scale = np.maximum(np.abs(table).max(axis=0), 1e-30)
    table /= scale
    ones = np.ones(len(works))
    rates = np.linalg.lstsq(table, ones, rcond=None)[0] if len(works) > 1 else np.full(2, -1.0)
    if rates.min() < 0:  # fit each of the two alone and take the better fit
        single = [np.eye(2)[i] * (table[:, i] @ ones) / max(table[:, i] @ table[:, i], 1e-30) for i in (0, 1)]
        rates = min(single, key=lambda rates_alone: float(np.square(table @ rates_alone - 1).sum()))
    return Estimate(float(rates[0] / scale[0]), float(rates[1] / scale[1]), source)


def deal(works: Sequence[float], shards: int) -> list[int]:
    """Return the shard (0 to ``shards - 1``) of each run: longest runs first, each to the shard with least work."""
    loads = np.zeros(shards)
    dealt = [0] * len(works)
    for index in sorted(range(len(works)), key=lambda i: (-works[i], i)):
        dealt[index] = int(loads.argmin())
        loads[dealt[index]] += works[index]
    return dealt


Shard = tuple[int, int]


@dataclass(frozen=True)
class Ray:
    """Address of a Ray cluster and the number of actors to start; None leaves the choice to `join`."""

    address: str | None = None
    actors: int | None = None


Pool = GPUPool | ActorPool


@dataclass(frozen=True)
class SweepJob:
    """A run with its hash and its work.

    Attributes
    ----------
    run : Run
        The examples, in the cells that no earlier run has.
    hash : str
        `config_hash` of `config`.
    config : mapping
        See `Run.config`.
    work : Work
    completes : tuple of str
        Hashes of the earlier runs that have the other cells.
    cell_set : str
        Hash of all cells that the sweep file asks for; empty where `run` has them all.
    """

    run: Run
    hash: str
    config: Mapping[str, Any]
    work: Work
    completes: tuple[str, ...] = ()
    cell_set: str = ""


@dataclass(frozen=True)
class SweepPlan:
    """Jobs of one start of a sweep, and the results of earlier starts.

    `jobs` are those that `--only` and `--shard` (i, n), counted from 1, select; `done` has the hashes of those that
    earlier starts finished. Rows go to `file`, or into the folder of the sweep if it is None.
    """

    sweep: Sweep
    device: Where
    facts: Mapping[Pair, PairFacts]
    jobs: tuple[SweepJob, ...]
    done: frozenset[str]
    earlier: SweepResults
    shard: Shard | None
    file: Path | None = None

    @property
    def remaining(self) -> list[SweepJob]:
        """Jobs that are not finished."""
        return [job for job in self.jobs if job.hash not in self.done]

    @property
    def path(self) -> Path:
        """The file that this start appends to."""
        if self.shard is None:
            return self.file or self.sweep.out / "rows.jsonl"
        index, shards = self.shard
        return self.sweep.out / f"rows-{index:0{len(str(shards))}}of{shards}.jsonl"

    def other_commits(self) -> set[str]:
        """Return the commits, other than the present one, at which runs of this plan were finished."""
        now = commit()
        hashes = {run for job in self.jobs for run in (job.hash, *job.completes) if run in self.earlier.runs}
        sessions = {self.earlier.runs[run]["session"] for run in hashes}
        return {str(self.earlier.sessions[session]["commit"]) for session in sessions} - {str(now)}


def make_plan(sweep: Sweep, only: str | None = None, shard: Shard | None = None, file: Path | None = None) -> SweepPlan:
    """Describe the models of a sweep without loading them, and find the runs that earlier starts finished.

    Raises SpError if a file is missing or damaged, a length does not fit the target's context, nothing matches
    `only`, or earlier results have another schema.
    """
    facts = {pair: pair_facts(pair) for pair in {run.pair for run in sweep.runs}}
    device = pick_device(sweep.device)
    by_hash: dict[str, SweepJob] = {}  # a file, or --set, may name the same run twice
    resolved: dict[tuple[int, Pair], tuple[SweepCell, ...]] = {}  # runs of a task and a pair share their cells
    for run in sweep.runs:
        pair, key = facts[run.pair], (id(run.cells), run.pair)
        if key not in resolved:
            resolved[key] = distinct(cell.resolve(pair.target) for cell in run.cells)
        # Task natural is exempt: few of its prompts are read in full.
        if run.tokens > pair.target.context and not isinstance(run.spec.task, NaturalTask):
            raise ConfigError(
                f"{run.label}: {run.tokens} tokens do not fit {pair.models['target']['file']}, whose context is "
                f"{pair.target.context}"
            )
        job = make_job(replace(run, cells=resolved[key]), pair)
        by_hash.setdefault(job.hash, job)
    jobs = list(by_hash.values())
    if shard is not None:
        dealt = deal([TYPICAL[device].seconds(job.work) for job in jobs], shard[1])
        jobs = [job for job, owner in zip(jobs, dealt, strict=True) if owner == shard[0] - 1]
    if only is not None:
        chosen = [job for job in jobs if fnmatchcase(job.run.label, only)]
        if not chosen:
            example = f"; the label of a run is like {jobs[0].run.label!r}" if jobs else ""
            raise ConfigError(f"--only {only!r} matches none of {len(jobs)} runs{example}")
        jobs = chosen
    if file is not None:
        earlier = read_results([file] if file.exists() else [])
    else:
        earlier = read_results(result_files(sweep.out)) if sweep.out.is_dir() else SweepResults()
    done = set(earlier.runs)
    known = EarlierCells(earlier)
    # Only after sharding: shards that start at different times must distribute the runs in the same way, whatever is
    # finished by then.
    for place, job in enumerate(jobs):
        if job.hash in done:
            continue
        rest = known.remainder(job.run, job.config)
        if rest.run is None:
            jobs[place] = replace(job, completes=rest.completes)
            done.add(job.hash)
        elif rest.completes:
            cell_set = config_hash({"cells": job.config["cells"]})
            jobs[place] = replace(make_job(rest.run, facts[job.run.pair]), completes=rest.completes, cell_set=cell_set)
    return SweepPlan(sweep, device, facts, tuple(jobs), frozenset(done), earlier, shard, file)


def make_job(run: Run, pair: PairFacts) -> SweepJob:
    """Return the job of a run with a pair that `pair_facts` described. ConfigError if a file of a scorer is missing."""
    config = run.config(pair.hashes, files_of(run))
    return SweepJob(run, config_hash(config), config, work_of(config, pair.target, pair.drafter))


def from_earlier(plan: SweepPlan) -> Estimate | None:
    """Fit rates to earlier runs of the same models on this machine; None if there are none."""
    here = machine_slug(machine_facts(plan.device))
    works, seconds = [], []
    for run in plan.earlier.runs.values():
        pair = next((pair for pair in plan.facts.values() if pair.hashes == run["config"].get("models")), None)
        if pair is None:
            continue
        session, where = plan.earlier.sessions[run["session"]], plan.earlier.places[run["run"]][-1]
        check_machine(session, f"{where}: its session")
        check_cells(run["config"], f"{where}: config")
        if machine_slug(session) == here:
            works.append(work_of(run["config"], pair.target, pair.drafter))
            seconds.append(run["seconds"])
    return fit(works, seconds, f"{len(works)} earlier run{'s' * (len(works) != 1)} on this machine") if works else None


def calibrate(plan: SweepPlan) -> Estimate:
    """Measure rates on one example of the shortest remaining run and one of the next longer one, after a warm-up."""
    shortest: dict[int, SweepJob] = {}
    for job in sorted(plan.remaining, key=lambda job: job.work.flop / job.run.count):
        shortest.setdefault(job.run.tokens, job)
    worker, works, seconds = RunWorker(plan.device), [], []
    for job in list(shortest.values())[:2]:  # two lengths, since the fit has two rates
        sample = Run(job.run.pair, job.run.spec, job.run.tokens, job.run.first, 1, job.run.cells, job.run.full)
        outcome = worker.run(sample)
        if outcome.error:
            raise ConfigError(f"{job.run.label}: {outcome.error}")
        pair = plan.facts[job.run.pair]
        works.append(work_of(sample.config(pair.hashes), pair.target, pair.drafter))
        seconds.append(outcome.seconds)
    return fit(works, seconds, f"a calibration with {len(works)} example{'s' * (len(works) > 1)}")


def open_pool(plan: SweepPlan, gpus: Sequence[str] = (), ray: Ray | None = None) -> Pool | None:
    """Start a pool for the remaining runs: a process for each of `gpus`, or Ray actors; None to run in this process.

    Raises ConfigError if Ray is not installed or its cluster has no free place.
    """
    if not plan.remaining:
        return None
    make_worker = partial(RunWorker, plan.device, plugins=loaded_plugins())
    if gpus:
        return GPUPool(gpus, make_worker)
    if ray is None:
        return None
    cluster = join("--executor ray", ray.address, ray.actors or 1)
    try:
        return ActorPool(cluster, make_worker, "GPU" if plan.device == "cuda" else "CPU", ray.actors)
    except ConfigError:
        cluster.close()
        raise


def carry_out(
    plan: SweepPlan, progress: Callable[[Run, int], None] | None = None, pool: Pool | None = None
) -> Iterator[tuple[SweepJob, Outcome]]:
    """Carry out the remaining runs, in this process or on a `pool`, which is closed at the end.

    A run is on disk when it is yielded. `progress` is called with the run and 1 after every row in this process.
    Raises ConfigError if another process writes the same file.
    """
    jobs = plan.remaining
    by_run = {id(job.run): job for job in jobs}  # a pool yields the runs that it was given, in any order
    with Store(plan.path, session_line(plan.sweep.name, commit(), plan.device)) as store:
        runs = [job.run for job in jobs]
        for run, outcome in run_on(pool, runs) if pool else run_here(RunWorker(plan.device, progress), runs):
            job = by_run[id(run)]
            if outcome.error is None:
                store.add(
                    job.hash,
                    outcome.rows,
                    seconds=outcome.seconds,
                    config=job.config,
                    models=plan.facts[run.pair].models,
                    part=run.part,
                    completes=job.completes,
                    cell_set=job.cell_set,
                )
            else:
                store.fail(job.hash, run.label, outcome.error)
            yield job, outcome
