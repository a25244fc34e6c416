"""Group: work that a thread a card does together, and how one that fails or hangs ends the others."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from sp.errors import DeviceError, SpError, plain

T = TypeVar("T")

WAIT_SECONDS = 20.0
"""Longest wait of a card for the others in one all-gather or all-reduce."""
LEAVE_SECONDS = 8.0
"""Once a card has failed, the time in which the others are to end; with `WAIT_SECONDS` less than half a minute."""


class StoppedError(Exception):
    """Ends the work of a card because another one has failed, which is what is told."""


class Step(NamedTuple):
    """Something that all cards come to: which one of a run, counted from 1, and whether all-gather or all-reduce."""

    number: int
    kind: str


class Meeting:
    """What the threads of one `Group.run` know of each other.

    Attributes
    ----------
    came : list of int
        All-gathers and all-reduces that each card has come to.
    causes : list of (int, BaseException)
        Cards that failed and why, the first one first.
    votes : dict of int to list of bool
        What cards said at a step at which they agree.
    """

    def __init__(self, size: int) -> None:
        self.came = [0] * size
        self.causes: list[tuple[int, BaseException]] = []
        self.votes: dict[int, list[bool]] = {}
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether the work is given up."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Give the work up."""
        self._stop.set()

    def come(self, rank: int, kind: str) -> Step:
        """Note that a card has come to its next step."""
        self.came[rank] += 1
        return Step(self.came[rank], kind)

    def late(self, step: Step, seconds: float) -> DeviceError:
        """What a card says that has waited too long for a step."""
        missing = [str(other) for other, came in enumerate(self.came) if came < step.number]
        who = f"card {' and card '.join(missing)} did not come" if missing else "what was queued did not end"
        return DeviceError(f"{step.kind} {step.number}: {who} within {seconds:g} s; check nvidia-smi and run again")


class Card(ABC):
    """What one thread of a group works with.

    Attributes
    ----------
    rank, size : int
        Which card it is, and of how many.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @abstractmethod
    def all_gather(self, *wholes: Any) -> None:
        """Fill every array from all cards, in place.

        Parameters
        ----------
        *wholes : array (size, ...)
            Contiguous, where the card is, of the same shape on every card. Part `rank` of it is this card's, and part i
            becomes that of card i. On a device this is queued like a kernel.

        Raises
        ------
        DeviceError
            When another card does not come in time.
        """

    @abstractmethod
    def all_reduce(self, *arrays: Any) -> None:
        """Put the mean over all cards in the place of every array.

        Where each card holds 1/size of something and adds its part of a sum, what all hold then is 1/size of both: see
        `sp.models.shards.shard_block`. All cards hold the same bits afterwards.

        Parameters
        ----------
        *arrays : float32 array
            Contiguous, where the card is, of the same shape on every card. On a device this is queued like a kernel.

        Raises
        ------
        DeviceError
            When another card does not come in time.

        Examples
        --------
        >>> import numpy as np
        >>> from sp.parallel.host import HostGroup
        >>> def mean(card):
        ...     found = np.full(2, card.rank, np.float32)
        ...     card.all_reduce(found)
        ...     return found.tolist()
        >>> HostGroup(2).run(mean)
        [[0.5, 0.5], [0.5, 0.5]]
        """

    @abstractmethod
    def wait(self) -> None:
        """Until all that was queued is done, nothing in a graph being made; errors are those of `all_gather`."""

    @abstractmethod
    def agree(self, fine: bool) -> bool:
        """Whether all cards say so; they ask each other on the host, once all that any has queued is done.

        Raises
        ------
        DeviceError
            When another card does not come in time.
        """

    def arrived(self, event: Any) -> None:
        """Until an event of this card's device has happened; errors are those of `all_gather`."""
        event.synchronize()


class Group(ABC):
    """Cards that work together, in threads of this process.

    Attributes
    ----------
    size : int
    wait_seconds, leave_seconds : float
        See `WAIT_SECONDS` and `LEAVE_SECONDS`.
    runs : int
        How often they began to work together.
    captures : bool
        Whether what cards do, all-gathers and all-reduces with it, may become CUDA graphs.
    """

    captures = False

    def __init__(self, size: int, wait_seconds: float = WAIT_SECONDS, leave_seconds: float = LEAVE_SECONDS) -> None:
        self.size, self.wait_seconds, self.leave_seconds = size, wait_seconds, leave_seconds
        self.runs = 0

    def run(self, work: Callable[[Card], T]) -> list[T]:
        """Do `work` on every card at once; what it returns, by card.

        When one fails the others are stopped where they next meet. A thread that goes on without coming to one is
        left to itself after `leave_seconds`; it ends at the next one it comes to.

        Raises
        ------
        SpError
            In one line the card that failed first and its cause; the type is the cause's, or DeviceError.

        Examples
        --------
        >>> import numpy as np
        >>> from sp.parallel.host import HostGroup
        >>> def squares(card):
        ...     found = np.zeros(card.size, int)
        ...     found[card.rank] = card.rank ** 2
        ...     card.all_gather(found)
        ...     return found.tolist()
        >>> HostGroup(3).run(squares)
        [[0, 1, 4], [0, 1, 4], [0, 1, 4]]
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
                meeting.causes.append((rank, error))
                meeting.stop()
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
                meeting.stop()
                self._await(meeting, ended)
                raise
        for rank in set(range(self.size)) - left:
            threads[rank].join()
        if meeting.causes:
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
        """Threads that did not end; once stopped they have half the time to leave, and as much again after `_force`."""
        left, forced = set(range(self.size)), False
        until: float | None = None
        while left:
            if until is None and meeting.stopped:
                until = time.monotonic() + self.leave_seconds / 2
            try:
                left.discard(ended.get(timeout=None if until is None else max(0.0, until - time.monotonic())))
            except Empty:
                if forced:
                    return left
                forced, until = True, time.monotonic() + self.leave_seconds / 2
                self._force(left)
        return left

    def _told(self, rank: int, cause: BaseException) -> BaseException:
        who = f"card {rank} of {self.size}"
        if isinstance(cause, SpError):
            return type(cause)(f"{who}: {cause}")
        if not isinstance(cause, Exception):
            return cause
        return DeviceError(f"{who} failed: {type(cause).__name__}: {plain(str(cause))}")
