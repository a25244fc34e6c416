"""A sweep from its checked file to rows on disk: what is left to do, how long it takes, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from sp.bench.record import commit
from sp.cluster import join
from sp.errors import ConfigError
from sp.evals.natural.task import NaturalTask
from sp.kernels.device import pick_device
from sp.kernels.machine import machine_facts, machine_slug
from sp.plugins import loaded_plugins
from sp.session.measured import check_machine
from sp.session.options import Where
from sp.studies.sweep.actors import ActorPool
from sp.studies.sweep.cards import CardPool
from sp.studies.sweep.estimate import TYPICAL, Estimate, Work, deal, fit, work_of
from sp.studies.sweep.executor import Outcome, Pool, run_here, run_on
from sp.studies.sweep.pairs import Pair
from sp.studies.sweep.provenance import PairFacts, outside_files, pair_facts, scorer_files
from sp.studies.sweep.row_fields import check_cells
from sp.studies.sweep.runs import Run, Sweep, config_hash
from sp.studies.sweep.store import Results, Store, read_results, result_files, session_line
from sp.studies.sweep.worker import Worker

Shard = tuple[int, int]


@dataclass(frozen=True)
class Ray:
    """Where a cluster of Ray is, and how many actors are asked of it; of what is left out, what `join` finds."""

    address: str | None = None
    actors: int | None = None


@dataclass(frozen=True)
class Job:
    """A run with its identity and its work."""

    run: Run
    hash: str
    config: Mapping[str, Any]
    work: Work


@dataclass(frozen=True)
class Plan:
    """What a start of a sweep will do.

    `facts`: of each pair; `jobs`: runs of this start that `--only` and `--shard` leave; `done`: hashes of runs that
    earlier starts finished; `earlier`: of earlier starts; `shard`: (i, n), counted from 1; `file`: rows go there, and
    not into the folder of the sweep.
    """

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
        sessions = {self.earlier.runs[job.hash]["session"] for job in self.jobs if job.hash in self.done}
        return {str(self.earlier.sessions[each]["commit"]) for each in sessions} - {str(now)}


def make_plan(sweep: Sweep, only: str | None = None, shard: Shard | None = None, file: Path | None = None) -> Plan:
    """Open what the sweep needs, without loading a model, and find out what is done.

    `only`: pattern of the labels of runs; `shard`: (i, n), counted from 1; `file`: where rows are and go, in place of
    the sweep's folder.

    Raises
    ------
    SpError
        A model or a file of a scorer is missing or damaged, a length does not fit its context, nothing matches `only`,
        or the results there are of another schema.
    """
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
        config = run.config(pair.hashes, scorer_files(run.config({}), run.label) | outside_files(run))
        job = Job(run, config_hash(config), config, work_of(config, pair.target, pair.drafter))
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
    return Plan(sweep, device, facts, tuple(jobs), frozenset(earlier.runs), earlier, shard, file)


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


def open_pool(plan: Plan, cards: Sequence[str] = (), ray: Ray | None = None) -> Pool | None:
    """Workers for what is left: a process for each card that is named, or actors of Ray; None for this process.

    Raises
    ------
    ConfigError
        Ray is missing, or its cluster has no place.
    """
    if not plan.left:
        return None
    make_worker = partial(Worker, plan.device, plugins=loaded_plugins())
    if cards:
        return CardPool(cards, make_worker)
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
    """Do what is left; every run is on the disk when it is yielded.

    `progress`: called with the run and 1 after every row, where runs are carried out in this process; `pool`: workers
    from `open_pool`, closed at the end; this process if left out.

    Raises
    ------
    ConfigError
        Another process writes the same file.
    """
    left = plan.left
    by_run = {id(job.run): job for job in left}
    with Store(plan.path, session_line(plan.sweep.name, commit(), plan.device)) as store:
        for run, outcome in outcomes(plan, [job.run for job in left], progress, pool):
            job = by_run[id(run)]
            if outcome.error is None:
                store.add(
                    job.hash,
                    outcome.rows,
                    seconds=outcome.seconds,
                    config=job.config,
                    models=plan.facts[run.pair].models,
                    part=run.part,
                )
            else:
                store.fail(job.hash, run.label, outcome.error)
            yield job, outcome


def outcomes(
    plan: Plan, runs: Sequence[Run], progress: Callable[[Run, int], None] | None, pool: Pool | None
) -> Iterator[tuple[Run, Outcome]]:
    """Runs as they finish: here, or by the workers of a pool."""
    if not runs:
        return iter(())
    return run_here(Worker(plan.device, progress), runs) if pool is None else run_on(pool, runs)
