"""Runs over a cluster of Ray: an actor a GPU, or a CPU, which keeps the pair it has loaded from run to run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from sp.cluster import Cluster
from sp.errors import ConfigError, plain
from sp.studies.sweep.executor import Outcome, RunsJobs, WorkerDied
from sp.studies.sweep.runs import Run

START_SECONDS = 120.0
"""An actor that has not begun by then has no place in the cluster."""
LOOK_SECONDS = 5.0

Kind = Literal["GPU", "CPU"]


@dataclass(eq=False)
class ActorWorker:
    """An actor, and whether it answers yet; `begun` is Ray's promise of its first answer."""

    actor: Any
    begun: Any
    since: float = field(default_factory=time.monotonic)


class ActorPool:
    """Workers as Ray actors, one GPU or one CPU each.

    `cluster`: closed with the pool; `make_worker`: makes the worker in its own process; `kind`, one of "GPU", "CPU":
    what an actor holds one of; `actors`: how many; as many as the cluster has free if left out.

    Raises
    ------
    ConfigError
        The cluster has not so many free.
    """

    def __init__(
        self, cluster: Cluster, make_worker: Callable[[], RunsJobs], kind: Kind = "CPU", actors: int | None = None
    ) -> None:
        free = cluster.free(kind, actors or 1)
        if free < (actors or 1):
            has = f"no {kind}" if not free else f"{free} {kind}{'s' * (free != 1)}"
            raise ConfigError(
                f"--executor ray: the cluster has {has} free, and each actor needs one; wait, add hosts or "
                f"{'lower --actors' if free else 'choose another cluster'}"
            )
        self.size = actors or free
        self._cluster, self._ray = cluster, cluster.ray
        self._running: dict[Any, ActorWorker] = {}
        self._workers: list[ActorWorker] = []

        folder = os.getcwd()

        class Actor:
            def __init__(self) -> None:
                with suppress(OSError):  # a host that has no such folder may yet have whatever is named in full
                    os.chdir(folder)
                self.worker = make_worker()

            def begin(self) -> None:
                """Answers once the worker is made."""

            def run(self, job: Run) -> Outcome:
                return self.worker.run(job)

        self._actor = self._ray.remote(**cluster.share(kind, self.size))(Actor)

    def start(self) -> ActorWorker:
        """A new actor; it is given its run at once and begins with it when it has a place."""
        actor = self._actor.remote()
        worker = ActorWorker(actor, actor.begin.remote())
        self._workers.append(worker)
        return worker

    def submit(self, worker: ActorWorker, job: Run) -> Any:
        """Begin a run on an actor."""
        over = worker.actor.run.remote(job)
        self._running[over] = worker
        return over

    def first(self, running: Sequence[Any]) -> Any:
        """The next run that is over; one whose actor finds no place counts as over, too."""
        while True:
            ready, _ = self._ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
            late = ready or [over for over in running if self._has_no_place(self._running[over])]
            if late:
                return late[0]

    def _has_no_place(self, worker: ActorWorker) -> bool:
        if time.monotonic() - worker.since < START_SECONDS:
            return False
        return not self._ray.wait([worker.begun], timeout=0)[0]

    def result(self, over: Any) -> Outcome:
        """The outcome; WorkerDied if the actor or its host is gone, or never had a place."""
        worker, errors = self._running.pop(over), self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(over, timeout=0)
        except errors.GetTimeoutError:
            self._end(worker)
            raise WorkerDied(f"no host had a place for it in {START_SECONDS:.0f} s") from None
        except errors.RayTaskError as error:  # the actor stands, with whatever the run has left of its pair
            self._end(worker)
            raise WorkerDied(plain(f"{type(error.cause).__name__}: {error.cause}")) from None
        except errors.RayError as error:
            self._end(worker)
            raise WorkerDied(last_line(error)) from None
        return outcome

    def _end(self, worker: ActorWorker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)

    def close(self) -> None:
        """End every actor, whatever it does, and the connection."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()
        self._cluster.close()


def last_line(error: Exception) -> str:
    """What an error of Ray comes down to: its text ends with what the actor ended by.

    Examples
    --------
    >>> last_line(RuntimeError("The actor died.\\n\\tclass_name: Actor\\nIts process was killed.\\n"))
    'RuntimeError: Its process was killed.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return plain(f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__)
