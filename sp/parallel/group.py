"""ParallelGroup: work that one thread per GPU does together, and how a thread that fails or hangs ends the others."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from sp.errors import DeviceError, SpError, plain

T = TypeVar("T")

WAIT_SECONDS = 20.0  # longest wait of a GPU for the others in one collective
LEAVE_SECONDS = 8.0
"""Time in which the other GPUs have to end once one has failed; less than half a minute together with `WAIT_SECONDS`.
"""
GRACE_SECONDS = 1.0
"""Extra seconds that the calling thread waits, beyond a GPU's own limit, before it reports the GPU as late."""
LOOK_SECONDS = 0.25  # its polling interval
LEAVE_PART = 3 / 8
"""Fraction of the time to leave in which GPUs end by themselves, and again after the others are forced; `_force` has
the rest."""


class StoppedError(Exception):
    """Ends the work of a GPU because another GPU has failed; the other GPU's error is the one that is reported."""


class Collective(NamedTuple):
    """A step at which all GPUs meet: its number within a run, from 1, and its kind (all-gather, all-reduce,
    agreement)."""

    number: int
    kind: str


class CollectiveBarrier:
    """State that the threads of one `ParallelGroup.run` share: how far each GPU has come, and which one is late.

    `arrivals`: collectives that each GPU has reached; `causes`: failed GPUs and their errors, the first failure
    first; `votes`: votes of the GPUs at an agreement; `published`: by number of a collective and rank, the data that
    the others may fetch until all have queued their copies; `stopped`: True once the run is abandoned."""

    def __init__(self, size: int) -> None:
        self.arrivals, self.stopped = [0] * size, False
        self.causes: list[tuple[int, BaseException]] = []
        self.votes: dict[int, list[bool]] = {}
        self.published: dict[int, dict[int, Any]] = {}
        self._releases: dict[int, int] = {}
        self._last: list[tuple[Collective, float] | None] = [None] * size
        self._waiting: list[tuple[Collective, float] | None] = [None] * size
        self._changed = threading.Condition()

    def stop(self) -> None:
        """Abandon the run and wake all threads that wait."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def fail(self, rank: int, cause: BaseException) -> None:
        """Abandon the run because a GPU failed; the same cause is recorded once."""
        if all(cause is not known for _, known in self.causes):
            self.causes.append((rank, cause))
        self.stop()

    def arrive(self, rank: int, kind: str) -> Collective:
        """Record that a GPU has reached its next collective, and return that."""
        step = Collective(self.arrivals[rank] + 1, kind)
        self._last[rank] = step, time.monotonic()
        with self._changed:
            self.arrivals[rank] = step.number
            if min(self.arrivals) == step.number:
                self._changed.notify_all()
        return step

    def all_arrived(self, step: Collective) -> bool:
        """Return True if all GPUs have reached a collective."""
        return min(self.arrivals) >= step.number

    def wait_all(self, step: Collective, seconds: float) -> bool:
        """Wait until all GPUs have reached a collective or the run is abandoned; return False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.stopped or self.all_arrived(step), seconds)

    def publish(self, rank: int, data: Any) -> None:
        """Publish a GPU's data for its next collective, for the others to fetch."""
        self.published.setdefault(self.arrivals[rank] + 1, {})[rank] = data

    def release(self, number: int) -> None:
        """Record that a GPU has queued its copies of a collective; once all have, the published data is dropped."""
        with self._changed:
            self._releases[number] = self._releases.get(number, 0) + 1
            if self._releases[number] == len(self.arrivals):
                del self._releases[number], self.published[number]

    def set_waiting(self, rank: int, step: Collective | None) -> None:
        """Record that a GPU waits for a collective to end, or with None that it no longer does."""
        self._waiting[rank] = None if step is None else (step, time.monotonic())

    def late_error(self, step: Collective, seconds: float) -> DeviceError:
        """Return the error of a GPU that has waited too long for a collective; it names the missing GPUs."""
        missing = [str(other) for other, number in enumerate(self.arrivals) if number < step.number]
        who = f"GPU {' and GPU '.join(missing)} did not arrive" if missing else "queued work did not finish"
        return DeviceError(f"{step.kind} {step.number}: {who} within {seconds:g} s; check nvidia-smi and run again")

    def overdue(self, seconds: float, grace: float) -> tuple[int, DeviceError] | None:
        """Return the GPU that should have raised `late_error` after `seconds` and has not within a further `grace`,
        and that error. The GPU may itself be stuck in a call that does not return, either while it polls the end of a
        collective or before that, after it has reached one that another GPU has not reached.

        >>> barrier = CollectiveBarrier(2)
        >>> step = barrier.arrive(1, "all-gather")
        >>> barrier.overdue(60.0, 0.0)
        >>> barrier.overdue(0.0, 0.0)[0]
        1
        """
        now, first = time.monotonic(), min(self.arrivals)
        pending = [*enumerate(self._waiting)]
        # A GPU ahead of the slowest one may hang before it gets to wait, so its last arrival counts as well.
        pending += [(rank, last) for rank, last in enumerate(self._last) if self.arrivals[rank] > first]
        for rank, since in pending:
            if since is not None and now - since[1] >= seconds + grace:
                return rank, self.late_error(since[0], seconds)
        return None


class Rank(ABC):
    """The handle of one thread of a group; `rank` and `size` are its index and the number of GPUs. A GPU that waits
    too long for another one in any of these methods raises DeviceError."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_gather(self, *wholes: Any) -> None:
        """Fill every array from all GPUs, in place; see `begin_gather`. On a device it is queued like a kernel."""
        self.begin_gather(*wholes)()

    @abstractmethod
    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        """Begin to fill every array (size, ...) from all GPUs, in place, after the work that is queued now.

        Arrays are contiguous, on the GPU's device, and of equal shape on every GPU. Part `rank` belongs to this GPU,
        and part i is filled from GPU i. The others may fetch this GPU's part for longer than it fetches theirs: the
        part must stay unchanged until the end of a later gather that every GPU begins after the end of this one. Work
        queued after calling the returned function finds the arrays filled; work queued before that call overlaps with
        the gather."""

    def all_reduce(self, *arrays: Any) -> None:
        """Replace every float32 array by its mean over all GPUs; it is queued as a gather is. Where each GPU holds
        1/size of a value and adds its part of a sum, the mean is 1/size of both: see `sp.models.run.tensor_parallel`.
        All GPUs hold the same bits afterwards."""
        self.begin_reduce(*arrays)()

    @abstractmethod
    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """Begin an `all_reduce` after the work that is queued now; like `begin_gather`, also inside a CUDA graph."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all queued work is done; nothing may be under capture."""

    @abstractmethod
    def agree(self, vote: bool) -> bool:
        """Return True if all GPUs vote True. They exchange votes on the host, after all queued work of every GPU."""

    def set_warm(self, warm: bool) -> None:
        """Set whether all GPUs have done the next kind of work before, so that it loads no kernels. Otherwise each
        waits for its device after the first collectives of a run, to be safe."""
        return

    def wait_for(self, event: Any) -> None:
        """Wait for an event of this GPU's device."""
        event.synchronize()

    def on_shared_cpu(self) -> AbstractContextManager[None]:
        """Keep this GPU's thread on the CPU that the other GPUs' threads use; see `SharedCpu`."""
        return nullcontext()

    def launch_lock(self) -> AbstractContextManager[Any]:
        """Hold the launch lock while this GPU queues work: see `LaunchLock`. Inside, it must not wait for its device
        nor for other GPUs."""
        return nullcontext()


class ParallelGroup(ABC):
    """GPUs that work together, in threads of this process.

    `wait_seconds`, `leave_seconds`: see `WAIT_SECONDS` and `LEAVE_SECONDS`; `runs`: number of runs so far; `captures`:
    True if the work of a GPU, with its collectives, may be captured as a CUDA graph; `busy`: multiprocessors that a
    collective occupies while it runs; `completed`: kinds of work that all GPUs have completed since the last failure,
    which the caller of `run` adds to; see `Rank.set_warm`."""

    captures = False
    busy = 0

    def __init__(self, size: int, wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS) -> None:
        self.size, self.wait_seconds, self.leave_seconds = size, wait_seconds, leave_seconds
        self.runs = 0
        self.completed = set[Hashable]()

    def run(self, work: Callable[[Rank], T]) -> list[T]:
        """Run `work` on every GPU at once and return the results by rank.

        When a GPU fails, the others are stopped at their next collective. A thread that reaches none is abandoned
        after `leave_seconds` and ends at its next one. The calling thread watches as well: if all GPUs were stuck,
        none of them could report it. SpError names in one line the GPU that failed first and its cause; its type is
        the cause's, or DeviceError."""
        barrier, ended = self._new_barrier(), SimpleQueue[int]()
        done: dict[int, T] = {}
        self.runs += 1

        def run_gpu(rank: int) -> None:
            try:
                with self._gpu(rank, barrier) as gpu:
                    done[rank] = work(gpu)
                    gpu.wait()
            except StoppedError:
                pass
            except BaseException as error:  # an exception that leaves a thread is lost
                barrier.fail(rank, error)
            finally:
                ended.put(rank)

        threads = [
            threading.Thread(target=copy_context().run, args=(run_gpu, rank), name=f"sp-gpu-{rank}", daemon=True)
            for rank in range(self.size)
        ]
        with self._around(barrier):
            for thread in threads:
                thread.start()
            try:
                stuck = self._await(barrier, ended)
            except BaseException:  # Ctrl-C
                self.completed.clear()
                barrier.stop()
                self._await(barrier, ended)
                raise
        for rank in set(range(self.size)) - stuck:
            threads[rank].join()
        if barrier.causes:
            self.completed.clear()
            raise self._named(*barrier.causes[0]) from barrier.causes[0][1]
        return [done[rank] for rank in range(self.size)]

    def device(self, rank: int) -> AbstractContextManager[Any]:
        """Make a GPU's device the current one, on which arrays are allocated."""
        return nullcontext()

    @abstractmethod
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> AbstractContextManager[Rank]:
        """Provide a GPU for its thread while that works."""

    def _new_barrier(self) -> CollectiveBarrier:
        """Return the state that the threads of a new run share."""
        return CollectiveBarrier(self.size)

    def _around(self, barrier: CollectiveBarrier) -> AbstractContextManager[None]:
        """Surround a whole run, in the calling thread."""
        return nullcontext()

    def _force(self, ranks: set[int]) -> None:
        """Free GPUs that did not end by themselves, as far as that is possible from outside; by default not at all."""
        return

    def _await(self, barrier: CollectiveBarrier, ended: SimpleQueue[int]) -> set[int]:
        """Wait for the threads and return those that did not end; a stopped run has some time to leave, and as much
        again after `_force`."""
        running, forced, part = set(range(self.size)), False, LEAVE_PART * self.leave_seconds
        until: float | None = None
        while running:
            now = time.monotonic()
            if not barrier.stopped and (late := barrier.overdue(self.wait_seconds, GRACE_SECONDS)):
                barrier.fail(*late)
            if until is None and barrier.stopped:
                until = now + part
            try:
                running.discard(ended.get(timeout=LOOK_SECONDS if until is None else max(0.0, until - now)))
            except Empty:
                if until is None:
                    continue
                if forced:
                    return running
                forced, until = True, time.monotonic() + part
                self._force(running)
        return running

    def _named(self, rank: int, cause: BaseException) -> BaseException:
        """Return the error of a run: the cause, with the GPU that failed."""
        who = f"GPU {rank} of {self.size}"
        if isinstance(cause, SpError):
            return type(cause)(f"{who}: {cause}")
        error = DeviceError(f"{who} failed: {type(cause).__name__}: {plain(str(cause))}")
        return error if isinstance(cause, Exception) else cause
