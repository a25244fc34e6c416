"""NcclRank: one GPU of several, whose thread queues all-gathers and all-reduces and waits for them.

NCCL does both. Gathers that overlap with other work are copied by copy engines where GPUs have peer access to each
other's memory (`PeerGathers`): NCCL's blocks would occupy multiprocessors meanwhile, even while they wait for a GPU."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import event_done, explain, import_nccl, reach_each_other
from sp.parallel.cpu_affinity import SharedCpu
from sp.parallel.group import Collective, CollectiveBarrier, Rank, StoppedError

POLL_SECONDS = 0.0005
"""Longest pause between two polls of an event; the device has work queued meanwhile, except at the end of a run."""
FIRST_POLL = 0.0001
"""First pause in seconds; each is twice the one before. Every poll takes Python's lock from a thread that queues work.
"""
GATHERS_IN_FLIGHT = 4
"""Most collectives in flight once an all-gather is queued: a GPU that hangs is detected two layers later. With a limit
of two, when one GPU was late, GPUs went on waiting for each other's hosts in turn for some layers."""
FETCHED_BYTES = 48 << 20
"""Smallest part of an array, in bytes, that GPUs fetch from each other: so many copies cost the host more than one
gather, and short chunks wait for the host. Four H200 gained from it with parts of 67 MB, not with 34."""
REDUCES_IN_FLIGHT = 64
"""The same limit for all-reduces, which are short and many; the device has milliseconds of work left while a host
polls."""
FIRST_STEPS = 4
"""Collectives at the start of a run that no GPU queues before all have reached them, even if they overlap with other
work. All of these but the last are also waited for: the kernels and memory that a layer loads and allocates in its
first run are loaded and allocated while no GPU waits for another."""
AVERAGE = 4  # `ncclAvg` of nccl.h, since NCCL 2.10
TURN_SECONDS = 0.01
"""Longest wait for the launch lock: a thread that holds it for longer itself waits, for example for a kernel's
compilation."""


class LaunchLock:
    """A fair lock that threads hold while they queue work.

    CuPy releases Python's lock in every launch. Threads that launch at the same time take it from each other each time,
    and waking a thread takes longer than a launch; one after the other they need only the time of their launches. The
    lock is granted in the order of requests. It orders nothing else: a thread that waits too long goes on without it.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds, self._lock, self._locked = seconds, threading.Lock(), False
        self._queue: deque[threading.Lock] = deque()

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the lock; yield False if it did not become free in time."""
        owned = self._acquire()
        try:
            yield owned
        finally:
            if owned:
                self._release()

    def _acquire(self) -> bool:
        with self._lock:
            if not self._locked:
                self._locked = True
                return True
            # A lock for each waiter, because a condition variable would not wake them in the order of requests.
            ticket = threading.Lock()
            ticket.acquire()
            self._queue.append(ticket)
        if ticket.acquire(timeout=self._seconds):
            return True
        with self._lock:
            timed_out = ticket in self._queue  # otherwise the lock was handed over meanwhile
            if timed_out:
                self._queue.remove(ticket)
        return not timed_out

    def _release(self) -> None:
        """Hand the lock to the thread that has waited longest, and wake no other."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._locked = False


class PeerGathers:
    """All-gathers of one GPU by copy engines, which leave all multiprocessors to concurrent kernels.

    A GPU publishes its parts and the event after which they are complete; each GPU that fetches them makes a stream
    of its own wait for that event, on the device. So no device ever waits for work that a thread has not queued yet.
    `devices`: CUDA device numbers of all GPUs, with peer access to each other, see `reachable`; `copy_stream`: the
    stream of this GPU that copies."""

    def __init__(self, rank: int, devices: Sequence[int], copy_stream: Any, barrier: CollectiveBarrier) -> None:
        self._rank, self._devices, self._copy_stream, self._barrier = rank, devices, copy_stream, barrier
        self._pending: deque[tuple[Collective, tuple[Any, ...]]] = deque()
        self.ended: dict[int, Any] = {}  # by number of a gather: the event after which all its parts have been copied

    def show(self, stream: Any, wholes: tuple[Any, ...]) -> Collective:
        """Arrive at the next gather, for which the others may fetch this GPU's parts after the work queued now."""
        addresses = tuple(whole.data.ptr for whole in wholes)
        self._barrier.publish(self._rank, (stream.record(), addresses))
        step = self._barrier.arrive(self._rank, "all-gather")
        self._pending.append((step, wholes))
        return step

    def fetch(self) -> list[tuple[Collective, Any]]:
        """Queue the copies of gathers that all GPUs have reached, in order; return these with their end events."""
        fetches = []
        while self._pending and self._barrier.all_arrived(self._pending[0][0]):
            step, wholes = self._pending.popleft()
            ended = self.ended[step.number] = self._copies(step.number, wholes)
            fetches.append((step, ended))
        return fetches

    def _copies(self, number: int, wholes: tuple[Any, ...]) -> Any:
        """Copy from one GPU after another, each starting at its next rank, so that no two read the same GPU at
        once."""
        runtime, stream, size = import_cupy().cuda.runtime, self._copy_stream, len(self._devices)
        published, device = self._barrier.published[number], self._devices[self._rank]
        stream.wait_event(published[self._rank][0])  # until then this GPU may still read the destination
        for step in range(1, size):
            other = (self._rank + step) % size
            ready, addresses = published[other]
            stream.wait_event(ready)
            for whole, start in zip(wholes, addresses, strict=True):
                part = whole.nbytes // size
                target, source = whole.data.ptr + other * part, start + other * part
                runtime.memcpyPeerAsync(target, device, source, self._devices[other], part, stream.ptr)
        self._barrier.release(number)
        return stream.record()


def reachable(devices: Sequence[int]) -> bool:
    """Enable peer access between all GPUs; return False if some cannot read each other's memory."""
    if not reach_each_other(devices):
        return False
    cuda = import_cupy().cuda
    for device in devices:
        with cuda.Device(device):
            for other in devices:
                try:
                    if other != device:
                        cuda.runtime.deviceEnablePeerAccess(other)
                except cuda.runtime.CUDARuntimeError as error:
                    if "PeerAccessAlreadyEnabled" not in str(error):  # CuPy may have enabled it
                        raise DeviceError(explain(error) or str(error)) from error
    return True


class NcclRank(Rank):
    """A thread that queues on the current stream of its device, some collectives ahead, and gathers on a second stream.

    While the current stream is being captured nothing is in flight, nothing is waited for and no collective is counted:
    the caller that replays the graph waits, and a capture may fail on one GPU alone. Querying whether the stream is
    captured raises if the capture has failed, before NCCL is called in vain."""

    def __init__(
        self,
        rank: int,
        communicator: Any,
        side_stream: Any,
        barrier: CollectiveBarrier,
        launch_lock: LaunchLock,
        seconds: float,
        size: int,
        shared_cpu: SharedCpu,
        peers: PeerGathers | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._shared_cpu = shared_cpu
        self._communicator, self._barrier, self._seconds = communicator, barrier, seconds
        self._launch_lock, self._side_stream, self._peers = launch_lock, side_stream, peers
        self._first = FIRST_STEPS  # number of the last collective that is treated as a first one
        self._in_flight: deque[tuple[Collective, Any]] = (
            deque()
        )  # collectives not known to have ended, and their end events

    def all_gather(self, *wholes: Any) -> None:
        """Gather as `Rank` does; it is queued once all GPUs have arrived."""
        self._gather(wholes, True)()

    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        stream, peers = import_cupy().cuda.get_current_stream(), self._peers
        part = max(whole.nbytes for whole in wholes) // self.size
        if peers is None or part < FETCHED_BYTES or stream.is_capturing():
            return self._gather(wholes, False)
        self._check_stopped()
        self._drain(GATHERS_IN_FLIGHT - 1)
        self._checked(wholes)
        step = peers.show(stream, wholes)
        return partial(self._gathered, peers, step, stream)

    def _gathered(self, peers: PeerGathers, step: Collective, stream: Any) -> None:
        """Make a stream wait for the fetched parts. Their copies were queued when this GPU last held the launch lock,
        if all had arrived by then."""
        if step.number not in peers.ended:
            if not self._barrier.all_arrived(step):
                self._until(partial(self._barrier.wait_all, step), step)
            self._in_flight.extend(peers.fetch())
        stream.wait_event(peers.ended.pop(step.number))

    def _gather(self, wholes: tuple[Any, ...], together: bool) -> Callable[[], None]:
        stream, step, nccl = *self._arrive("all-gather", GATHERS_IN_FLIGHT, together), import_nccl()
        side = stream if stream.is_capturing() else self._side_stream  # inside a graph the order is fixed
        if side is not stream:
            side.wait_event(stream.record())
        self._checked(wholes)
        for whole in wholes:
            part, start = whole.nbytes // self.size, whole.data.ptr
            own_part = start + self.rank * part  # NCCL recognises this address as an all-gather in place
            self._communicator.allGather(own_part, start, part, nccl.NCCL_UINT8, side.ptr)
        if side is stream:
            return lambda: None
        ended = side.record()
        self._queued(step, ended)
        return lambda: stream.wait_event(ended)

    def _checked(self, wholes: tuple[Any, ...]) -> None:
        for whole in wholes:
            assert whole.shape[0] == self.size, f"{whole.shape} for {self.size} GPUs"
            assert whole.flags.c_contiguous, f"{whole.shape} is not contiguous"

    def all_reduce(self, *arrays: Any) -> None:
        """Reduce as `Rank` does; it is queued once all GPUs have arrived."""
        stream = import_cupy().cuda.get_current_stream()
        step = self._reduce(arrays, stream)
        if not stream.is_capturing():
            self._queued(step, stream.record())

    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """Begin to reduce as `Rank` does; it is queued once all GPUs have arrived."""
        stream, side = import_cupy().cuda.get_current_stream(), self._side_stream
        side.wait_event(stream.record())
        step = self._reduce(arrays, side)
        ended = side.record()
        if not stream.is_capturing():
            self._queued(step, ended)
        return lambda: stream.wait_event(ended)

    def _reduce(self, arrays: tuple[Any, ...], stream: Any) -> Collective:
        """Queue the means. By ring or by tree, in NCCL one GPU completes each sum and hands it to the others, so that
        all have the same bits."""
        (_, step), nccl = self._arrive("all-reduce", REDUCES_IN_FLIGHT, True), import_nccl()
        for array in arrays:
            assert array.dtype == "float32", f"{array.dtype}"
            assert array.flags.c_contiguous, f"{array.shape} is not contiguous"
            here = array.data.ptr
            self._communicator.allReduce(here, here, array.size, nccl.NCCL_FLOAT32, AVERAGE, stream.ptr)
        return step

    def wait(self) -> None:
        """Wait until all queued work is done. To load a kernel or to allocate memory the driver may wait for everything
        that a device has queued. If that includes a collective, in a graph or not, for which another GPU's thread has
        queued nothing yet, and that thread needs the driver too, neither proceeds."""
        stream = import_cupy().cuda.get_current_stream()
        if not stream.is_capturing():
            self._drain(0)
            self.wait_for(stream.record())

    def wait_for(self, event: Any) -> None:
        self._done(event, Collective(self._barrier.arrivals[self.rank], "after step"))

    def agree(self, vote: bool) -> bool:
        """Vote as `Rank` does; afterwards nothing in flight waits for another GPU."""
        self.wait()
        step = self._barrier.arrive(self.rank, "agreement")
        votes = self._barrier.votes.setdefault(step.number, [])
        votes.append(vote)
        self._until(partial(self._poll, lambda: len(votes) == self.size), step)
        self._first = step.number + FIRST_STEPS  # the next ones are treated like the first of a run
        return all(votes)

    def set_warm(self, warm: bool) -> None:
        self._first = 0 if warm else FIRST_STEPS

    def on_shared_cpu(self) -> AbstractContextManager[None]:
        return self._shared_cpu.pin()

    @contextmanager
    def launch_lock(self) -> Iterator[bool]:
        """Hold the launch lock. Copies of gathers that all have reached are queued first, while no other thread wants
        Python's lock."""
        with self._launch_lock.hold() as owned:
            if self._peers is not None:
                self._in_flight.extend(self._peers.fetch())
            yield owned

    def _drain(self, limit: int) -> None:
        """Wait until at most `limit` collectives are in flight."""
        while len(self._in_flight) > limit:
            step, event = self._in_flight.popleft()
            self._done(event, step)

    def _arrive(self, kind: str, limit: int, together: bool) -> tuple[Any, Collective]:
        """Arrive at the next collective once fewer than `limit` are in flight; return the current stream and it.
        `together`: wait until all GPUs have arrived. If a GPU's device waited in a collective for a GPU that has not
        arrived, it would hang that one where it loads a kernel or allocates memory: see `wait`."""
        stream = import_cupy().cuda.get_current_stream()
        self._check_stopped()
        if stream.is_capturing():
            return stream, Collective(self._barrier.arrivals[self.rank], kind)
        self._drain(limit - 1)
        step = self._barrier.arrive(self.rank, kind)
        if together or step.number <= self._first:
            # The last GPU to arrive wakes the waiting threads, which do not compete for Python's lock before that.
            self._until(partial(self._barrier.wait_all, step), step)
        return stream, step

    def _check_stopped(self) -> None:
        if self._barrier.stopped:
            raise StoppedError

    def _queued(self, step: Collective, ended: Any) -> None:
        self._in_flight.append((step, ended))
        if step.number < self._first:
            self._drain(0)

    def _done(self, event: Any, step: Collective) -> None:
        self._until(partial(self._poll, lambda: event_done(event)), step)

    def _poll(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll until a condition holds or the run is abandoned; return False on a timeout."""
        until, pause = time.monotonic() + seconds, FIRST_POLL
        while not (condition() or self._barrier.stopped):
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        return True

    def _until(self, wait: Callable[[float], bool], step: Collective) -> None:
        """Wait in a collective; StoppedError if the run is abandoned, DeviceError for a late GPU on a timeout."""
        self._barrier.set_waiting(self.rank, step)
        if not wait(self._seconds):
            raise self._barrier.late_error(step, self._seconds)
        self._check_stopped()
        self._barrier.set_waiting(self.rank, None)
