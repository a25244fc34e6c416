"""Where runs are carried out: one after the other in this process, or over a pool of workers that may die."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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

    def close(self) -> None:
        """End every worker, whatever it does."""


def run_here(worker: RunsJobs, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """One run after another in this process."""
    for job in jobs:
        yield job, worker.run(job)


def run_on(pool: Pool, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """Runs over a pool, as they finish.

    A worker that dies is replaced where there is work for another, and its run, the only thing lost, tried again, up to
    three times in all. No worker outlives the last run, or an interruption.
    """
    waiting, attempts = deque(enumerate(jobs)), Counter[int]()
    busy: dict[Any, tuple[Any, int, Run]] = {}
    try:
        idle = deque(pool.start() for _ in range(min(pool.size, len(jobs))))
        while waiting or busy:
            while idle and waiting:
                index, job = waiting.popleft()
                worker = idle.popleft()  # one that has worked before one that has only been asked for
                busy[pool.submit(worker, job)] = worker, index, job
            over = pool.first(list(busy))
            worker, index, job = busy.pop(over)
            try:
                outcome = pool.result(over)
            except WorkerDied as error:
                attempts[index] += 1
                given_up = attempts[index] >= ATTEMPTS
                if not given_up:
                    waiting.appendleft((index, job))
                if len(waiting) > len(idle):
                    idle.append(pool.start())
                if not given_up:
                    continue
                outcome = Outcome(error=f"its worker died {ATTEMPTS} times ({error})")
            else:
                idle.append(worker)
            yield job, outcome
    finally:
        pool.close()
