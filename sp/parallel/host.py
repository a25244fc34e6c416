"""HostGroup: threads of the host in place of cards, for tests and as what a group of cards must equal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

from sp.parallel.group import Card, Group, Meeting, StoppedError


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

    def all_gather(self, *wholes: Any) -> None:
        """See `Card`; nothing is queued."""
        self._table.shown[self.rank] = wholes
        self._table.came[self.rank] += 1
        self._meet()
        for place, whole in enumerate(wholes):
            for other in range(self.size):
                if other != self.rank:
                    whole[other] = self._table.shown[other][place][other]
        self._meet()  # before anyone writes into its part again

    def wait(self) -> None:
        """Nothing was queued."""

    def _meet(self) -> None:
        try:
            self._table.barrier.wait(self._seconds)
        except threading.BrokenBarrierError:
            if self._table.stopped:
                raise StoppedError from None
            raise self._table.late(self.rank, self._seconds) from None


class HostGroup(Group):
    """As many threads on the host.

    Parameters
    ----------
    size : int
    wait_seconds, leave_seconds : float
        See `Group`.
    """

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
