"""Group: work that a thread a card does together, and how one that fails or hangs ends the others."""

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

WAIT_SECONDS = 20.0  # longest wait of a card for the others in one all-gather or all-reduce
LEAVE_SECONDS = 8.0
"""Once a card has failed, the time in which the others are to end; with `WAIT_SECONDS` less than half a minute."""
GRACE_SECONDS = 1.0
"""How much longer than a card itself the thread that asked for a run waits before it says that the card is late."""
LOOK_SECONDS = 0.25  # how often it looks
LEAVE_PART = 3 / 8
"""Of the time to leave: for cards that end by themselves, and again once the others are forced, which has the rest."""


class StoppedError(Exception):
    """Ends the work of a card because another one has failed, which is what is told."""


class Step(NamedTuple):
    """Something that all cards come to: which one of a run, from 1, and whether all-gather or all-reduce."""

    number: int
    kind: str


class Meeting:
    """What the threads of one `Group.run` know of each other, and who of them is late.

    `came`: all-gathers and all-reduces that each card has come to; `causes`: cards that failed and why, the first one
    first; `votes`: what cards said at a step at which they agree; `parts`: what they let the others fetch at a step, by
    rank, until all have queued that; `stopped`: whether the work is given up.
    """

    def __init__(self, size: int) -> None:
        self.came, self.stopped = [0] * size, False
        self.causes: list[tuple[int, BaseException]] = []
        self.votes: dict[int, list[bool]] = {}
        self.parts: dict[int, dict[int, Any]] = {}
        self._fetched: dict[int, int] = {}
        self._last: list[tuple[Step, float] | None] = [None] * size
        self._waiting: list[tuple[Step, float] | None] = [None] * size
        self._changed = threading.Condition()

    def stop(self) -> None:
        """Give the work up."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def fail(self, rank: int, cause: BaseException) -> None:
        """Give the work up because of a card; the same cause counts once."""
        if all(cause is not known for _, known in self.causes):
            self.causes.append((rank, cause))
        self.stop()

    def come(self, rank: int, kind: str) -> Step:
        """Note that a card has come to its next step."""
        step = Step(self.came[rank] + 1, kind)
        self._last[rank] = step, time.monotonic()
        with self._changed:
            self.came[rank] = step.number
            if min(self.came) == step.number:
                self._changed.notify_all()
        return step

    def have_come(self, step: Step) -> bool:
        """Whether all cards have."""
        return min(self.came) >= step.number

    def all_came(self, step: Step, seconds: float) -> bool:
        """Wait until all cards have come to a step, or the work is given up; whether that was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.stopped or self.have_come(step), seconds)

    def show(self, rank: int, shown: Any) -> None:
        """Let the others fetch something at the step that a card comes to next."""
        self.parts.setdefault(self.came[rank] + 1, {})[rank] = shown

    def fetched(self, number: int) -> None:
        """Note that a card has queued all that was shown at a step, which nobody needs once all have."""
        with self._changed:
            self._fetched[number] = self._fetched.get(number, 0) + 1
            if self._fetched[number] == len(self.came):
                del self._fetched[number], self.parts[number]

    def wait(self, rank: int, step: Step | None) -> None:
        """Note that a card waits for a step to end, or with None that it no longer does."""
        self._waiting[rank] = None if step is None else (step, time.monotonic())

    def late(self, step: Step, seconds: float) -> DeviceError:
        """What a card says that has waited too long for a step."""
        missing = [str(other) for other, came in enumerate(self.came) if came < step.number]
        who = f"card {' and card '.join(missing)} did not come" if missing else "what was queued did not end"
        return DeviceError(f"{step.kind} {step.number}: {who} within {seconds:g} s; check nvidia-smi and run again")

    def overdue(self, seconds: float, grace: float) -> tuple[int, DeviceError] | None:
        """The card that should have said `late` after so many seconds, and has not for a further `grace`. It may itself
        be stuck in a call that does not return, while it looks whether a step has ended or before that, when it has
        come to a step that another has not come to.

        >>> meeting = Meeting(2)
        >>> step = meeting.come(1, "all-gather")
        >>> meeting.overdue(60.0, 0.0)
        >>> meeting.overdue(0.0, 0.0)[0]
        1
        """
        now, first = time.monotonic(), min(self.came)
        held = [*enumerate(self._waiting)]
        held += [(rank, last) for rank, last in enumerate(self._last) if self.came[rank] > first]
        for rank, since in held:
            if since is not None and now - since[1] >= seconds + grace:
                return rank, self.late(since[0], seconds)
        return None


class Card(ABC):
    """What one thread of a group works with; `rank` and `size` say which card it is, and of how many. A card that waits
    too long for another one in any of these raises DeviceError."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_gather(self, *wholes: Any) -> None:
        """Fill every array from all cards, in place; see `begin_gather`. On a device this is queued like a kernel."""
        self.begin_gather(*wholes)()

    @abstractmethod
    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        """Begin to fill every array (size, ...) from all cards, in place, once what is queued now is done.

        Arrays are contiguous, where the card is, alike on every card. Part `rank` is this card's, and part i becomes
        that of card i. The others may fetch this card's part for longer than it fetches theirs: it stays until a gather
        has ended that every card begins after the end of this one. What is queued after a call of what is returned
        finds the arrays filled; what is queued before runs beside.
        """

    def all_reduce(self, *arrays: Any) -> None:
        """Put the mean over all cards in the place of every float32 array; it is queued as a gather is. Where each card
        holds 1/size of something and adds its part of a sum, what all hold then is 1/size of both: see
        `sp.models.run.tensor_parallel`. All cards hold the same bits afterwards."""
        self.begin_reduce(*arrays)()

    @abstractmethod
    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """Begin an `all_reduce` once what is queued now is done; see `begin_gather`, in a CUDA graph too."""

    @abstractmethod
    def wait(self) -> None:
        """Until all that was queued is done, nothing in a graph being made."""

    @abstractmethod
    def agree(self, fine: bool) -> bool:
        """Whether all cards say so; they ask each other on the host, once all that any has queued is done."""

    def done_before(self, known: bool) -> None:
        """Say whether all cards have done before what is queued next, so that it loads nothing. If so, none waits for
        its device after the first steps of a run, as is done to be safe."""
        return

    def arrived(self, event: Any) -> None:
        """Until an event of this card's device has happened."""
        event.synchronize()

    def one_core(self) -> AbstractContextManager[None]:
        """Inside, this card's thread is where those of the others are: see `OneCore`."""
        return nullcontext()

    def turn(self) -> AbstractContextManager[Any]:
        """Inside, this card queues work: see `Turns`. It does not wait for its device, nor for other cards."""
        return nullcontext()


class Group(ABC):
    """Cards that work together, in threads of this process.

    `wait_seconds`, `leave_seconds`: see `WAIT_SECONDS` and `LEAVE_SECONDS`; `runs`: how often they began to work
    together; `captures`: whether what cards do, all-gathers and all-reduces with it, may become CUDA graphs; `busy`:
    multiprocessors that a gather or sum under way keeps busy; `done`: kinds of work that all cards have done to its end
    since one of them failed, kept by who has them done, see `Card.done_before`.
    """

    captures = False
    busy = 0

    def __init__(self, size: int, wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS) -> None:
        self.size, self.wait_seconds, self.leave_seconds = size, wait_seconds, leave_seconds
        self.runs = 0
        self.done = set[Hashable]()

    def run(self, work: Callable[[Card], T]) -> list[T]:
        """Do `work` on every card at once; what it returns, by card.

        When one fails the others are stopped where they next meet. A thread that goes on without coming to one is
        left to itself after `leave_seconds`; it ends at the next one it comes to. The thread that calls this watches,
        too: where all cards are stuck, none of them would tell. SpError names in one line the card that failed first
        and its cause; the type is the cause's, or DeviceError.
        """
        meeting, ended = self._meeting(), SimpleQueue[int]()
        done: dict[int, T] = {}
        self.runs += 1

        def one(rank: int) -> None:
            try:
                with self._card(rank, meeting) as card:
                    done[rank] = work(card)
                    card.wait()
            except StoppedError:
                pass
            except BaseException as error:  # of a thread nobody else would hear of it
                meeting.fail(rank, error)
            finally:
                ended.put(rank)

        threads = [
            threading.Thread(target=copy_context().run, args=(one, rank), name=f"sp-card-{rank}", daemon=True)
            for rank in range(self.size)
        ]
        with self._around(meeting):
            for thread in threads:
                thread.start()
            try:
                left = self._await(meeting, ended)
            except BaseException:  # Ctrl-C
                self.done.clear()
                meeting.stop()
                self._await(meeting, ended)
                raise
        for rank in set(range(self.size)) - left:
            threads[rank].join()
        if meeting.causes:
            self.done.clear()
            raise self._told(*meeting.causes[0]) from meeting.causes[0][1]
        return [done[rank] for rank in range(self.size)]

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """Inside, arrays are made where a card is."""
        return nullcontext()

    @abstractmethod
    def _card(self, rank: int, meeting: Meeting) -> AbstractContextManager[Card]:
        """A card for its thread, which is inside while it works."""

    def _meeting(self) -> Meeting:
        """What the threads of a new run share."""
        return Meeting(self.size)

    def _around(self, meeting: Meeting) -> AbstractContextManager[None]:
        """Around all of a run, in the thread that asked for it."""
        return nullcontext()

    def _force(self, ranks: set[int]) -> None:
        """Free cards that did not end by themselves, as far as that can be done from outside: here not at all."""
        return

    def _await(self, meeting: Meeting, ended: SimpleQueue[int]) -> set[int]:
        """Threads that did not end; once stopped they have some time to leave, and as much again after `_force`."""
        left, forced, part = set(range(self.size)), False, LEAVE_PART * self.leave_seconds
        until: float | None = None
        while left:
            now = time.monotonic()
            if not meeting.stopped and (late := meeting.overdue(self.wait_seconds, GRACE_SECONDS)):
                meeting.fail(*late)
            if until is None and meeting.stopped:
                until = now + part
            try:
                left.discard(ended.get(timeout=LOOK_SECONDS if until is None else max(0.0, until - now)))
            except Empty:
                if until is None:
                    continue
                if forced:
                    return left
                forced, until = True, time.monotonic() + part
                self._force(left)
        return left

    def _told(self, rank: int, cause: BaseException) -> BaseException:
        who = f"card {rank} of {self.size}"
        if isinstance(cause, SpError):
            return type(cause)(f"{who}: {cause}")
        told = DeviceError(f"{who} failed: {type(cause).__name__}: {plain(str(cause))}")
        return told if isinstance(cause, Exception) else cause
