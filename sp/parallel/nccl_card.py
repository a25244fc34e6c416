"""NcclCard: one GPU of several, whose thread queues all-gathers and all-reduces and waits for them.

NCCL does both. Gathers that are begun, to run beside other work, are copied by copy engines where cards reach each
other's memory (`PeerGathers`): NCCL's blocks keep multiprocessors from that work, also while they wait for a card.
"""

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
from sp.parallel.group import Card, Meeting, Step, StoppedError
from sp.parallel.processors import OneCore

POLL_SECONDS = 0.0005
"""Longest pause between two looks at an event; the device has work queued meanwhile, but for the last one of a run."""
FIRST_POLL = 0.0001
"""The first pause; each is twice the one before. Every look takes Python's lock from a thread that queues work."""
GATHERS_AHEAD = 4
"""Most steps under way once an all-gather is queued: a card that hangs is found out two layers later. With two, cards
of which one was late went on waiting for each other's hosts by turns, for some layers."""
FETCHED_BYTES = 48 << 20
"""Smallest part of an array that cards fetch from each other: so many copies cost the host more than one gather, and
short stripes wait for the host. Four H200 gained by it with parts of 67 MB, not with 34."""
REDUCES_AHEAD = 64
"""The same of all-reduces, which are short and many; the device has milliseconds of work left while a host looks."""
FIRST_STEPS = 4
"""Steps of a run that no card queues before all have come to them, even if gathered beside. All of these but the last
are waited for as well: what a layer loads and allocates when it is first run is loaded and allocated while no card
waits for another."""
AVERAGE = 4  # `ncclAvg` of nccl.h, since NCCL 2.10
TURN_SECONDS = 0.01
"""Longest wait for a turn: who queues for longer waits for something itself, such as a kernel that is compiled."""


class Turns:
    """Whose turn it is to queue work.

    CuPy lets go of Python's lock in every launch. Threads that launch at the same time take it from each other at each
    of them, and waking a thread takes longer than a launch; one after the other they need what the launches need. Turns
    are given in the order they are asked for. They order nothing else: who waits too long goes on without one.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds, self._lock, self._taken = seconds, threading.Lock(), False
        self._asking: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Inside it is the caller's turn, or it is not and was waited for."""
        mine = self._take()
        try:
            yield mine
        finally:
            if mine:
                self._give()

    def _take(self) -> bool:
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._asking.append(mine)
        if mine.acquire(timeout=self._seconds):
            return True
        with self._lock:
            late = mine in self._asking  # or it was handed over meanwhile
            if late:
                self._asking.remove(mine)
        return not late

    def _give(self) -> None:
        """Hand the turn to the one that asked first, and wake nobody else."""
        with self._lock:
            if self._asking:
                self._asking.popleft().release()
            else:
                self._taken = False


class PeerGathers:
    """All-gathers of one card by copy engines, which leave all multiprocessors to what runs beside them.

    A card shows its parts and the event after which they are whole; whoever fetches them makes a stream of its own wait
    for that event, on the device. So no device ever waits for what a thread has not queued yet. `devices`: CUDA's
    numbers of all cards, which reach each other, see `reachable`; `beside`: the stream of this card that copies.
    """

    def __init__(self, rank: int, devices: Sequence[int], beside: Any, meeting: Meeting) -> None:
        self._rank, self._devices, self._beside, self._meeting = rank, devices, beside, meeting
        self._begun: deque[tuple[Step, tuple[Any, ...]]] = deque()
        self.ended: dict[int, Any] = {}  # by step: the event after which all that it fetched is there

    def show(self, stream: Any, wholes: tuple[Any, ...]) -> Step:
        """Come to the next step, where the others have this card's parts once what is queued now is done."""
        places = tuple(whole.data.ptr for whole in wholes)
        self._meeting.show(self._rank, (stream.record(), places))
        step = self._meeting.come(self._rank, "all-gather")
        self._begun.append((step, wholes))
        return step

    def fetch(self) -> list[tuple[Step, Any]]:
        """Queue the copies of gathers to which all cards have come, in order; steps, and the ends of copies."""
        found = []
        while self._begun and self._meeting.have_come(self._begun[0][0]):
            step, wholes = self._begun.popleft()
            ended = self.ended[step.number] = self._copies(step.number, wholes)
            found.append((step, ended))
        return found

    def _copies(self, number: int, wholes: tuple[Any, ...]) -> Any:
        """One card after another, each beginning with the next one, so that no two fetch from the same at once."""
        runtime, beside, size = import_cupy().cuda.runtime, self._beside, len(self._devices)
        shown, mine = self._meeting.parts[number], self._devices[self._rank]
        beside.wait_event(shown[self._rank][0])  # until then this card may still read what lies in its place
        for turn in range(1, size):
            other = (self._rank + turn) % size
            ready, places = shown[other]
            beside.wait_event(ready)
            for whole, start in zip(wholes, places, strict=True):
                part = whole.nbytes // size
                to, source = whole.data.ptr + other * part, start + other * part
                runtime.memcpyPeerAsync(to, mine, source, self._devices[other], part, beside.ptr)
        self._meeting.fetched(number)
        return beside.record()


def reachable(devices: Sequence[int]) -> bool:
    """Let all cards read the memory of all others, and say whether they can."""
    if not reach_each_other(devices):
        return False
    cuda = import_cupy().cuda
    for one in devices:
        with cuda.Device(one):
            for other in devices:
                try:
                    if other != one:
                        cuda.runtime.deviceEnablePeerAccess(other)
                except cuda.runtime.CUDARuntimeError as error:
                    if "PeerAccessAlreadyEnabled" not in str(error):  # by CuPy itself, for example
                        raise DeviceError(explain(error) or str(error)) from error
    return True


class NcclCard(Card):
    """A thread that queues on the current stream of its device, some steps ahead, and gathers on a second one.

    Where the current one is captured nothing is under way, nothing is waited for and no step counts: whoever replays
    the graph waits, and a capture may fail on one card alone. To ask whether the stream is captured raises that it has
    failed, before NCCL is called in vain.
    """

    def __init__(
        self,
        rank: int,
        communicator: Any,
        beside: Any,
        meeting: Meeting,
        turns: Turns,
        seconds: float,
        size: int,
        core: OneCore,
        peers: PeerGathers | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._core = core
        self._communicator, self._meeting, self._turns, self._seconds = communicator, meeting, turns, seconds
        self._beside, self._first, self._peers = beside, FIRST_STEPS, peers
        self._ahead: deque[tuple[Step, Any]] = deque()  # steps that were under way when last looked at, and their ends

    def all_gather(self, *wholes: Any) -> None:
        """See `Card`; queued once all cards have come."""
        self._gather(wholes, True)()

    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        stream, peers = import_cupy().cuda.get_current_stream(), self._peers
        part = max(whole.nbytes for whole in wholes) // self.size
        if peers is None or part < FETCHED_BYTES or stream.is_capturing():
            return self._gather(wholes, False)
        self._go_on()
        self._drain(GATHERS_AHEAD - 1)
        self._checked(wholes)
        step = peers.show(stream, wholes)
        return partial(self._gathered, peers, step, stream)

    def _gathered(self, peers: PeerGathers, step: Step, stream: Any) -> None:
        """Make a stream wait for what is fetched; that was queued at the card's last turn, if all had come by then."""
        if step.number not in peers.ended:
            if not self._meeting.have_come(step):
                self._until(partial(self._meeting.all_came, step), step)
            self._ahead.extend(peers.fetch())
        stream.wait_event(peers.ended.pop(step.number))

    def _gather(self, wholes: tuple[Any, ...], together: bool) -> Callable[[], None]:
        stream, step, nccl = *self._come("all-gather", GATHERS_AHEAD, together), import_nccl()
        beside = stream if stream.is_capturing() else self._beside  # a graph knows one order
        if beside is not stream:
            beside.wait_event(stream.record())
        self._checked(wholes)
        for whole in wholes:
            part, start = whole.nbytes // self.size, whole.data.ptr
            mine = start + self.rank * part  # NCCL takes this as all-gather in place
            self._communicator.allGather(mine, start, part, nccl.NCCL_UINT8, beside.ptr)
        if beside is stream:
            return lambda: None
        ended = beside.record()
        self._queued(step, ended)
        return lambda: stream.wait_event(ended)

    def _checked(self, wholes: tuple[Any, ...]) -> None:
        for whole in wholes:
            assert whole.shape[0] == self.size, f"{whole.shape} for {self.size} cards"
            assert whole.flags.c_contiguous, f"{whole.shape} is not contiguous"

    def all_reduce(self, *arrays: Any) -> None:
        """See `Card`; queued once all cards have come."""
        stream = import_cupy().cuda.get_current_stream()
        step = self._reduce(arrays, stream)
        if not stream.is_capturing():
            self._queued(step, stream.record())

    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """See `Card`; queued once all cards have come."""
        stream, beside = import_cupy().cuda.get_current_stream(), self._beside
        beside.wait_event(stream.record())
        step = self._reduce(arrays, beside)
        ended = beside.record()
        if not stream.is_capturing():
            self._queued(step, ended)
        return lambda: stream.wait_event(ended)

    def _reduce(self, arrays: tuple[Any, ...], stream: Any) -> Step:
        """Whether NCCL goes by ring or tree, one card ends each sum and hands it to the others."""
        (_, step), nccl = self._come("all-reduce", REDUCES_AHEAD, True), import_nccl()
        for array in arrays:
            assert array.dtype == "float32", f"{array.dtype}"
            assert array.flags.c_contiguous, f"{array.shape} is not contiguous"
            here = array.data.ptr
            self._communicator.allReduce(here, here, array.size, nccl.NCCL_FLOAT32, AVERAGE, stream.ptr)
        return step

    def wait(self) -> None:
        """See `Card`. To load a kernel or to give memory the driver may wait for all that a device has queued. If that
        is a step, in a graph or not, for which another card's thread has queued nothing yet, and that thread needs the
        driver, neither goes on."""
        stream = import_cupy().cuda.get_current_stream()
        if not stream.is_capturing():
            self._drain(0)
            self.arrived(stream.record())

    def arrived(self, event: Any) -> None:
        self._done(event, Step(self._meeting.came[self.rank], "after step"))

    def agree(self, fine: bool) -> bool:
        """See `Card`; nothing is under way then that waits for another card."""
        self.wait()
        step = self._meeting.come(self.rank, "agreement")
        votes = self._meeting.votes.setdefault(step.number, [])
        votes.append(fine)
        self._until(partial(self._looked, lambda: len(votes) == self.size), step)
        self._first = step.number + FIRST_STEPS  # these are taken as the first of a run are
        return all(votes)

    def done_before(self, known: bool) -> None:
        self._first = 0 if known else FIRST_STEPS

    def one_core(self) -> AbstractContextManager[None]:
        return self._core.inside()

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """See `Card`; copies of what all have come to are queued first, when nobody else wants Python's lock."""
        with self._turns.turn() as mine:
            if self._peers is not None:
                self._ahead.extend(self._peers.fetch())
            yield mine

    def _drain(self, left: int) -> None:
        """Until no more than so many steps are under way."""
        while len(self._ahead) > left:
            step, event = self._ahead.popleft()
            self._done(event, step)

    def _come(self, kind: str, ahead: int, together: bool) -> tuple[Any, Step]:
        """The current stream, and the next step, once no more than so many of those before are under way. `together`:
        and once all cards have come to it. A card whose device waits in a step for one that has not come would hang it,
        where that one is about to load a kernel or to ask for memory: see `wait`."""
        stream = import_cupy().cuda.get_current_stream()
        self._go_on()
        if stream.is_capturing():
            return stream, Step(self._meeting.came[self.rank], kind)
        self._drain(ahead - 1)
        step = self._meeting.come(self.rank, kind)
        if together or step.number <= self._first:
            # Who waits is woken by the last one, and takes Python's lock from nobody before.
            self._until(partial(self._meeting.all_came, step), step)
        return stream, step

    def _go_on(self) -> None:
        if self._meeting.stopped:
            raise StoppedError

    def _queued(self, step: Step, ended: Any) -> None:
        self._ahead.append((step, ended))
        if step.number < self._first:
            self._drain(0)

    def _done(self, event: Any, step: Step) -> None:
        self._until(partial(self._looked, lambda: event_done(event)), step)

    def _looked(self, true: Callable[[], bool], seconds: float) -> bool:
        """Look until something is true, or the work is given up; whether that was in time."""
        until, pause = time.monotonic() + seconds, FIRST_POLL
        while not (true() or self._meeting.stopped):
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        return True

    def _until(self, waited: Callable[[float], bool], step: Step) -> None:
        """Wait for something of a step; StoppedError, or the error of a card that is late, if it is not in time."""
        self._meeting.wait(self.rank, step)
        if not waited(self._seconds):
            raise self._meeting.late(step, self._seconds)
        self._go_on()
        self._meeting.wait(self.rank, None)
