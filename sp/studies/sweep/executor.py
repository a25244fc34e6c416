"""Where runs are carried out: one after the other in this process, or over a pool of workers that may die."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from sp.errors import ConfigError
from sp.studies.sweep.runs import Run

ATTEMPTS = 3


@dataclass(frozen=True)
class Outcome:
    """What came of a run: its rows and the time it took, or one line that says why not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None


class RunsJobs(Protocol):
    """A worker: carries out one run after another."""

    def run(self, job: Run) -> Outcome:
        """Carry out one run; errors of the run are part of the outcome."""


class WorkerDied(Exception):  # noqa: N818
    """The worker of a run is gone, and the run with it."""


class Pool(Protocol):
    """Workers in other processes or on other machines."""

    @property
    def size(self) -> int:
        """Workers to start."""

    def start(self) -> Any:
        """Start a worker; a handle to it."""

    def submit(self, worker: Any, job: Run) -> Any:
        """Begin a run; something to wait for."""

    def first(self, running: Sequence[Any]) -> Any:
        """Wait until one of them is over, and return it."""

    def result(self, over: Any) -> Outcome:
        """What came of it; WorkerDied if its worker is gone."""


def run_here(worker: RunsJobs, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """One run after another in this process."""
    for job in jobs:
        yield job, worker.run(job)


def run_on(pool: Pool, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """Runs over a pool, as they finish.

    A worker that dies is replaced and its run, the only thing lost, tried again, up to three times in all.
    """
    waiting, attempts = deque(enumerate(jobs)), Counter[int]()
    idle = [pool.start() for _ in range(min(pool.size, len(jobs)))]
    busy: dict[Any, tuple[Any, int, Run]] = {}
    while waiting or busy:
        while idle and waiting:
            index, job = waiting.popleft()
            worker = idle.pop()
            busy[pool.submit(worker, job)] = worker, index, job
        over = pool.first(list(busy))
        worker, index, job = busy.pop(over)
        try:
            outcome = pool.result(over)
        except WorkerDied as error:
            idle.append(pool.start())
            attempts[index] += 1
            if attempts[index] < ATTEMPTS:
                waiting.appendleft((index, job))
                continue
            outcome = Outcome(error=f"its worker died {ATTEMPTS} times ({error})")
        else:
            idle.append(worker)
        yield job, outcome


class RayPool:
    """Workers as Ray actors, one GPU each; on a cluster without GPUs one CPU each.

    Joins the cluster that ``RAY_ADDRESS`` names, else starts one on this machine.

    Parameters
    ----------
    make_worker : callable
        Makes the worker in its own process.

    Raises
    ------
    ConfigError
        Ray is not installed.
    """

    def __init__(self, make_worker: Callable[[], RunsJobs]) -> None:
        try:
            ray: Any = import_module("ray")
        except ModuleNotFoundError:
            raise ConfigError("--executor ray needs the package ray; pip install 'sp-prefill[ray]'") from None
        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        self._gpus = int(ray.cluster_resources().get("GPU", 0))

        class Actor:
            def __init__(self) -> None:
                self.worker = make_worker()

            def run(self, job: Run) -> Outcome:
                return self.worker.run(job)

        needs = {"num_gpus": 1} if self._gpus else {"num_cpus": 1}
        self._actor = ray.remote(**needs)(Actor)

    @property
    def size(self) -> int:
        """One worker a GPU of the cluster, or a CPU where it has none."""
        return self._gpus or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self) -> Any:
        """A new actor."""
        return self._actor.remote()

    def submit(self, worker: Any, job: Run) -> Any:
        """Begin a run on an actor."""
        return worker.run.remote(job)

    def first(self, running: Sequence[Any]) -> Any:
        """The next run that is over."""
        ready, _ = self._ray.wait(list(running), num_returns=1)
        return ready[0]

    def result(self, over: Any) -> Outcome:
        """The outcome; WorkerDied if the actor or its host is gone."""
        try:
            outcome: Outcome = self._ray.get(over)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.WorkerCrashedError) as error:
            raise WorkerDied(type(error).__name__) from None
        return outcome
