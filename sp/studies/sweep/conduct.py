"""A sweep from its checked file to rows on disk: what is left to do, how long it takes, and doing it."""

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
from sp.studies.sweep.executor import ActorPool, GPUPool, Outcome, Worker, run_here, run_on
from sp.studies.sweep.provenance import PairFacts, pair_facts
from sp.studies.sweep.reuse import EarlierCells, files_of
from sp.studies.sweep.store import Results, Store, check_cells, read_results, result_files, session_line
from sp.studies.sweep.sweep import Pair, Run, Sweep, config_hash


@dataclass(frozen=True)
class Work:
    """What a run does: floating-point operations of all prefills, and answers, or rows where none are asked for."""

    flop: float
    answers: int


@dataclass(frozen=True)
class Estimate:
    """Seconds of work: a rate for the prefills, and a cost of each answer (decoding, text, launches). `source`: what it
    rests on, for the message."""

    seconds_per_flop: float
    seconds_per_answer: float
    source: str

    def seconds(self, work: Work) -> float:
        """Predicted seconds."""
        return self.seconds_per_flop * work.flop + self.seconds_per_answer * work.answers


TYPICAL = {"cpu": Estimate(1e-11, 0.1, "a laptop"), "cuda": Estimate(2e-15, 0.03, "an H200")}
"""To weigh runs against each other, small against large, before anything is measured; not to tell a time by."""


def work_of(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig) -> Work:
    """Work of a run from its stored configuration. Cells that share a scorer share one scoring: a pass of the drafter,
    what the scorer says if the target reads, or nothing. Of task natural the target reads only where it answers."""
    tokens, count = config["tokens"], config["count"]
    scorers = {repr(cell["scorer"]): cell["scorer"] for cell in config["cells"]}
    flop = sum(_scoring(each, target, drafter, tokens) for each in scorers.values())
    task = config.get("task", {})
    if task.get("name") != "natural" or task.get("answers"):
        flop += flops(target, tokens) if config.get("full") else 0.0
        flop += sum(flops(target, token_budget(cell["keep_ratio"], tokens)) for cell in config["cells"])
    return Work(count * flop, count * (len(config["cells"]) + bool(config.get("full"))))


def _scoring(config: Mapping[str, Any], target: ModelConfig, drafter: ModelConfig, tokens: int) -> float:
    """Operations of a scorer as it is stored; one from outside may not be imported."""
    name = config["name"]
    kind = SCORERS.class_of(name) if name in SCORERS else Scorer
    if issubclass(kind, ModelFreeScorer):
        return 0.0
    if not kind.reads_target:
        return flops(drafter, tokens)
    options = {key: value for key, value in config.items() if key != "name"}
    return SCORERS.build(name, options).flops(target, tokens)


def fit(works: Sequence[Work], seconds: Sequence[float], source: str) -> Estimate:
    """Least squares over measured runs; neither rate may be negative. Relative errors count, so that short runs speak
    as loudly as long ones."""
    measured = np.maximum(np.asarray(seconds, np.float64), 1e-9)
    table = np.array([[work.flop, work.answers] for work in works], np.float64) / measured[:, None]
    scale = np.maximum(np.abs(table).max(axis=0), 1e-30)
    table /= scale
    ones = np.ones(len(works))
    rates = np.linalg.lstsq(table, ones, rcond=None)[0] if len(works) > 1 else np.full(2, -1.0)
    if rates.min() < 0:  # one of the two alone, whichever fits better
        single = [np.eye(2)[i] * (table[:, i] @ ones) / max(table[:, i] @ table[:, i], 1e-30) for i in (0, 1)]
        rates = min(single, key=lambda each: float(np.square(table @ each - 1).sum()))
    return Estimate(float(rates[0] / scale[0]), float(rates[1] / scale[1]), source)


def deal(works: Sequence[float], shards: int) -> list[int]:
    """Shard (0 to ``shards - 1``) of each run: the longest first, each to the shard with least to do."""
    loads = np.zeros(shards)
    dealt = [0] * len(works)
    for index in sorted(range(len(works)), key=lambda i: (-works[i], i)):
        dealt[index] = int(loads.argmin())
        loads[dealt[index]] += works[index]
    return dealt


Shard = tuple[int, int]


@dataclass(frozen=True)
class Ray:
    """Where a cluster of Ray is, and how many actors are asked of it; of what is left out, what `join` finds."""

    address: str | None = None
    actors: int | None = None


Pool = GPUPool | ActorPool


@dataclass(frozen=True)
class Job:
    """A run with its identity and its work.

    Attributes
    ----------
    run : Run
        If earlier runs have some of its cells, what they leave.
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
class Plan:
    """What a start of a sweep will do: `jobs` that `--only` and `--shard` (i, n), from 1, leave, of which earlier
    starts have `done` some, by hash. Rows go to `file`, if not into the folder of the sweep."""

    sweep: Sweep
    device: Where
    facts: Mapping[Pair, PairFacts]
    jobs: tuple[Job, ...]
    done: frozenset[str]
    earlier: Results
    shard: Shard | None
    file: Path | None = None

    @property
    def left(self) -> list[Job]:
        """Jobs that are not done."""
        return [job for job in self.jobs if job.hash not in self.done]

    @property
    def path(self) -> Path:
        """The file this start appends to."""
        if self.shard is None:
            return self.file or self.sweep.out / "rows.jsonl"
        index, shards = self.shard
        return self.sweep.out / f"rows-{index:0{len(str(shards))}}of{shards}.jsonl"

    def other_commits(self) -> set[str]:
        """Commits other than today's at which runs of this plan were done."""
        now = commit()
        hashes = {run for job in self.jobs for run in (job.hash, *job.completes) if run in self.earlier.runs}
        sessions = {self.earlier.runs[run]["session"] for run in hashes}
        return {str(self.earlier.sessions[each]["commit"]) for each in sessions} - {str(now)}


def make_plan(sweep: Sweep, only: str | None = None, shard: Shard | None = None, file: Path | None = None) -> Plan:
    """Open what the sweep needs, without loading a model, and find out what is done. SpError: a file is missing or
    damaged, a length does not fit its context, nothing matches `only`, or results there are of another schema."""
    facts = {pair: pair_facts(pair) for pair in {run.pair for run in sweep.runs}}
    device = pick_device(sweep.device)
    by_hash: dict[str, Job] = {}  # a file, or --set, may ask for one run twice
    for run in sweep.runs:
        pair = facts[run.pair]
        if run.tokens > pair.target.context and not isinstance(run.spec.task, NaturalTask):  # few of it need reading
            raise ConfigError(
                f"{run.label}: {run.tokens} tokens do not fit {pair.models['target']['file']}, whose context is "
                f"{pair.target.context}"
            )
        job = make_job(run, pair)
        by_hash.setdefault(job.hash, job)
    jobs = list(by_hash.values())
    if shard is not None:
        dealt = deal([TYPICAL[device].seconds(job.work) for job in jobs], shard[1])
        jobs = [job for job, owner in zip(jobs, dealt, strict=True) if owner == shard[0] - 1]
    if only is not None:
        chosen = [job for job in jobs if fnmatchcase(job.run.label, only)]
        if not chosen:
            example = f"; runs are called like {jobs[0].run.label!r}" if jobs else ""
            raise ConfigError(f"--only {only!r} matches none of {len(jobs)} runs{example}")
        jobs = chosen
    if file is not None:
        earlier = read_results([file] if file.exists() else [])
    else:
        earlier = read_results(result_files(sweep.out)) if sweep.out.is_dir() else Results()
    done = set(earlier.runs)
    known = EarlierCells(earlier)
    for place, job in enumerate(jobs):  # after runs were dealt: shards that start later must deal them alike
        if job.hash in done:
            continue
        rest = known.remainder(job.run, job.config)
        if rest.run is None:
            jobs[place] = replace(job, completes=rest.completes)
            done.add(job.hash)
        elif rest.completes:
            cell_set = config_hash({"cells": job.config["cells"]})
            jobs[place] = replace(make_job(rest.run, facts[job.run.pair]), completes=rest.completes, cell_set=cell_set)
    return Plan(sweep, device, facts, tuple(jobs), frozenset(done), earlier, shard, file)


def make_job(run: Run, pair: PairFacts) -> Job:
    """Return the job of a run by a pair that `pair_facts` described. ConfigError: a file of its scorers is missing."""
    config = run.config(pair.hashes, files_of(run))
    return Job(run, config_hash(config), config, work_of(config, pair.target, pair.drafter))


def from_earlier(plan: Plan) -> Estimate | None:
    """Rates of runs that the same models did on this machine; None if there are none."""
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


def calibrate(plan: Plan) -> Estimate:
    """Rates of one example of the shortest run that is left, and of the next longer one, after a warm-up."""
    shortest: dict[int, Job] = {}
    for job in sorted(plan.left, key=lambda job: job.work.flop / job.run.count):
        shortest.setdefault(job.run.tokens, job)
    worker, works, seconds = Worker(plan.device), [], []
    for job in list(shortest.values())[:2]:
        one = Run(job.run.pair, job.run.spec, job.run.tokens, job.run.first, 1, job.run.cells, job.run.full)
        outcome = worker.run(one)
        if outcome.error:
            raise ConfigError(f"{job.run.label}: {outcome.error}")
        pair = plan.facts[job.run.pair]
        works.append(work_of(one.config(pair.hashes), pair.target, pair.drafter))
        seconds.append(outcome.seconds)
    return fit(works, seconds, f"a calibration with {len(works)} example{'s' * (len(works) > 1)}")


def open_pool(plan: Plan, gpus: Sequence[str] = (), ray: Ray | None = None) -> Pool | None:
    """Workers for what is left: a process for each GPU that is named, or actors of Ray; None for this process.
    ConfigError: Ray is missing, or its cluster has no place."""
    if not plan.left:
        return None
    make_worker = partial(Worker, plan.device, plugins=loaded_plugins())
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
    plan: Plan, progress: Callable[[Run, int], None] | None = None, pool: Pool | None = None
) -> Iterator[tuple[Job, Outcome]]:
    """Do what is left, here or by a `pool`, closed at the end; every run is on the disk when it is yielded. `progress`
    is called with the run and 1 after every row done here. ConfigError: another process writes the same file."""
    left = plan.left
    by_run = {id(job.run): job for job in left}
    with Store(plan.path, session_line(plan.sweep.name, commit(), plan.device)) as store:
        runs = [job.run for job in left]
        for run, outcome in run_on(pool, runs) if pool else run_here(Worker(plan.device, progress), runs):
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
