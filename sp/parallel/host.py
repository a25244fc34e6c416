"""HostGroup: threads of the host in place of cards, for tests and as what a group of cards must equal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

from sp.parallel.group import Card, Group, Meeting, Step, StoppedError


class _Table(Meeting):
    """A meeting at which every card sees the arrays of the others."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.barrier = threading.Barrier(size)
        self.shown: list[tuple[Any, ...]] = [()] * size

    def stop(self) -> None:
        """Give the work up, and wake who waits."""
        super().stop()
        self.barrier.abort()


class _HostCard(Card):
    """A thread that copies what the others hold."""

    def __init__(self, rank: int, size: int, table: _Table, seconds: float) -> None:
        super().__init__(rank, size)
        self._table, self._seconds = table, seconds

    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        """See `Card`; nothing is queued."""
        step = self._show(wholes, "all-gather")
        for place, whole in enumerate(wholes):
            for other in range(self.size):
                if other != self.rank:
                    whole[other] = self._table.shown[other][place][other]
        self._meet(step)  # before anyone writes into its part again
        return lambda: None

    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """See `Card`; every card adds in the order of ranks, and nothing is queued."""
        step = self._show(arrays, "all-reduce")
        sums = []
        for place, array in enumerate(arrays):
            total = self._table.shown[0][place].copy()
            for other in range(1, self.size):
                total += self._table.shown[other][place]
            total *= array.dtype.type(1 / self.size)
            sums.append(total)
        self._meet(step)  # before anyone writes over what others read
        for array, total in zip(arrays, sums, strict=True):
            array[...] = total
        return lambda: None

    def wait(self) -> None:
        """Nothing was queued."""

    def agree(self, fine: bool) -> bool:
        step = self._show((fine,), "agreement")
        found = all(said for (said,) in self._table.shown)
        self._meet(step)  # before anyone shows something else
        return found

    def _show(self, arrays: tuple[Any, ...], kind: str) -> Step:
        """Let the others see arrays, and see theirs."""
        self._table.shown[self.rank] = arrays
        step = self._table.come(self.rank, kind)
        self._meet(step)
        return step

    def _meet(self, step: Step) -> None:
        try:
            self._table.barrier.wait(self._seconds)
        except threading.BrokenBarrierError:
            if self._table.stopped:
                raise StoppedError from None
            raise self._table.late(step, self._seconds) from None


class HostGroup(Group):
    """As many threads on the host."""

    def _meeting(self) -> Meeting:
        return _Table(self.size)

    @contextmanager
    def _around(self, meeting: Meeting) -> Iterator[None]:
        # Threads that each set the number of BLAS threads and set it back would leave one of their own settings.
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            yield

    @contextmanager
    def _card(self, rank: int, meeting: Meeting) -> Iterator[Card]:
        assert isinstance(meeting, _Table)
        yield _HostCard(rank, self.size, meeting, self.wait_seconds)
