"""NcclCard: one GPU of several, whose thread queues all-gathers and all-reduces and waits for them.

NCCL does both. Gathers that are begun, to run beside other work, are copied by copy engines where cards reach each
other's memory (`PeerGathers`): NCCL's blocks keep multiprocessors from that work, also while they wait for a card.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from sp.kernels import import_cupy
from sp.kernels.device import event_done, import_nccl
from sp.parallel.group import Card
from sp.parallel.meeting import Meeting, Step, StoppedError
from sp.parallel.one_core import OneCore
from sp.parallel.peer_gathers import PeerGathers
from sp.parallel.turns import Turns

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
AVERAGE = 4
"""`ncclAvg` of nccl.h, since NCCL 2.10."""


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
        """See `Card`."""
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
        if not peers.queued(step):
            if not self._meeting.have_come(step):
                self._until(partial(self._meeting.all_came, step), step)
            self._ahead.extend(peers.fetch())
        stream.wait_event(peers.end(step))

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
        """See `Card`.

        To load a kernel or to give memory the driver may wait for all that a device has queued. If that is a step, in a
        graph or not, for which another card's thread has queued nothing yet, and that thread needs the driver, neither
        goes on.
        """
        stream = import_cupy().cuda.get_current_stream()
        if not stream.is_capturing():
            self._drain(0)
            self.arrived(stream.record())

    def arrived(self, event: Any) -> None:
        """See `Card`."""
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
        """See `Card`."""
        self._first = 0 if known else FIRST_STEPS

    def one_core(self) -> AbstractContextManager[None]:
        """See `Card`."""
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
        """The current stream, and the next step, once no more than so many of those before are under way.

        `together`: and once all cards have come to it. A card whose device waits in a step for one that has not come
        would hang it, where that one is about to load a kernel or to ask for memory: see `wait`.
        """
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
        """StoppedError if the work is given up."""
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
