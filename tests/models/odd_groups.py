"""Groups of GPUs, threads in their place, whose gathers come later than those of `HostGroup`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from sp.parallel.group import CollectiveBarrier, Rank
from sp.parallel.host import HostGroup


class LateGroup(HostGroup):
    """Gathers as late as it may be, while `HostGroup` does so as early as it can be."""

    @contextmanager
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> Iterator[Rank]:
        with super()._gpu(rank, barrier) as gpu:
            begin = gpu.begin_gather
            gpu.begin_gather = lambda *wholes: lambda: begin(*wholes)()  # type: ignore[method-assign]
            yield gpu


class FetchingGroup(HostGroup):
    """Fetches parts while those whose they are go on, the last GPU last, as copy engines may."""

    @contextmanager
    def _gpu(self, rank: int, barrier: CollectiveBarrier) -> Iterator[Rank]:
        with super()._gpu(rank, barrier) as gpu:

            def begin(*wholes: np.ndarray) -> Callable[[], None]:
                barrier.publish(rank, wholes)  # type: ignore[arg-type]
                step = barrier.arrive(rank, "all-gather")

                def fetched() -> None:
                    assert barrier.wait_all(step, 20)
                    for other, shown in sorted(barrier.published[step.number].items()):
                        time.sleep(1e-3 * rank)
                        for whole, theirs in zip(wholes, shown, strict=True):
                            whole[other] = theirs[other]

                return fetched

            gpu.begin_gather = begin  # type: ignore[method-assign]
            yield gpu
