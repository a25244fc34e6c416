"""HostGroup: host threads in place of GPUs, for tests and as the reference for groups of GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

from sp.parallel.group import Collective, CollectiveBarrier, ParallelGroup, Rank, StoppedError


class _SharedArrays(CollectiveBarrier):
    """A barrier at which every GPU sees the arrays of the others."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.phase = threading.Barrier(size)
        self.arrays: list[tuple[Any, ...]] = [()] * size

    def stop(self) -> None:
        """Abandon the run and wake all threads that wait."""
        super().stop()
        self.phase.abort()


class _HostRank(Rank):
    """A thread that copies the arrays of the others."""

    def __init__(self, rank: int, size: int, shared: _SharedArrays, seconds: float) -> None:
        super().__init__(rank, size)
        self._shared, self._seconds = shared, seconds

    def begin_gather(self, *wholes: Any) -> Callable[[], None]:
        """Gather at once; nothing is queued."""
        step = self._show(wholes, "all-gather")
        for place, whole in enumerate(wholes):
            for other in range(self.size):
                if other != self.rank:
                    whole[other] = self._shared.arrays[other][place][other]
        self._meet(step)  # before anyone writes into its part again
        return lambda: None

    def begin_reduce(self, *arrays: Any) -> Callable[[], None]:
        """Reduce at once; every GPU adds in the order of ranks, so that all have the same bits."""
        step = self._show(arrays, "all-reduce")
        sums = []
        for place, array in enumerate(arrays):
            total = self._shared.arrays[0][place].copy()
            for other in range(1, self.size):
                total += self._shared.arrays[other][place]
            total *= array.dtype.type(1 / self.size)
            sums.append(total)
        self._meet(step)  # before anyone writes over what others read
        for array, total in zip(arrays, sums, strict=True):
            array[...] = total
        return lambda: None

    def wait(self) -> None:
        """Return at once, as nothing is ever queued."""

    def agree(self, vote: bool) -> bool:
        step = self._show((vote,), "agreement")
        unanimous = all(value for (value,) in self._shared.arrays)
        self._meet(step)  # before anyone shows something else
        return unanimous

    def _show(self, arrays: tuple[Any, ...], kind: str) -> Collective:
        """Show arrays to the others, and wait until all have shown theirs."""
        self._shared.arrays[self.rank] = arrays
        step = self._shared.arrive(self.rank, kind)
        self._meet(step)
        return step

    def _meet(self, step: Collective) -> None:
        try:
            self._shared.phase.wait(self._seconds)
        except threading.BrokenBarrierError:
            if self._shared.stopped:
                raise StoppedError from None
            raise self._shared.late_error(step, self._seconds) from None


class HostGroup(ParallelGroup):
    """A group of host threads, one for each GPU."""

    def _new_barrier(self) -> CollectiveBarrier:
        return _SharedArrays(self.size)

    @contextmanager
    def _around(self, barrier: CollectiveBarrier) -> Iterator[None]:
        # Threads that each set the number of BLAS threads and set it back would leave one of their own settings.
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            yield

    @contextmanager
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> Iterator[Rank]:
        assert isinstance(barrier, _SharedArrays)
        yield _HostRank(rank, self.size, barrier, self.wait_seconds)
