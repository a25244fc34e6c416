"""Times of device work by CUDA events: warmed up, inputs out of the L2 cache, launch gaps hidden; and of a host that
plans launches, which short work waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, l2_bytes
from sp.ops.norms import rms_norm
from sp.parallel.processors import processors

WIDTH, TOGETHER = 1024, 100
"""Of `HostTime`: values of a row, and launches between two looks at the clock, which fit into a stream's queue."""


class Spread(NamedTuple):
    """Median and quartiles of samples."""

    median: float
    low: float
    high: float


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles, by linear interpolation.

    Examples
    --------
    >>> spread([1.0, 2.0, 3.0, 4.0, 10.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    ordered = sorted(samples)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    return Spread(at(0.5), at(0.25), at(0.75))


def mode_of(graph: bool) -> str:
    """How `time_kernel` times, as the keys of records have it: replays of a graph, or calls queued behind other work.

    Two more modes have benchmarks of their own: "eager", single calls on an idle device, whose launch is in the time;
    and "burst", calls back to back, until the card has settled at the clock that it can hold.
    """
    return "graph" if graph else "queued"


def time_kernel(
    fn: Callable[[], object], repeats: int = 20, flush_l2: bool = True, warmup: int = 3, graph: bool = False
) -> list[float]:
    """Milliseconds of each of `repeats` calls of `fn` on the current stream.

    Before each call a buffer larger than the L2 cache is written: `fn` then reads memory, and the host has time to
    queue it, so that one kernel is timed without its launch.

    Parameters
    ----------
    fn : callable
        Queues device work on the current stream and does not wait for it.
    repeats : int
        Samples to take.
    flush_l2 : bool
        False keeps whatever `fn` left in the cache.
    warmup : int
        Calls before the first sample; kernels are compiled in the first.
    graph : bool
        Capture `fn` once as a CUDA graph and time its replays, for work of many short launches.

    Returns
    -------
    list of float
        All samples, in order.
    """
    cupy = import_cupy()
    stream = cupy.cuda.get_current_stream()
    for _ in range(warmup):
        fn()
    stream.synchronize()
    if graph:
        with cupy.cuda.Stream(non_blocking=True) as side:
            side.begin_capture()
            fn()
            captured = side.end_capture()
        fn = captured.launch
        fn()
    scratch = _scratch(current_device())
    pairs = []
    for number in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        if flush_l2:
            scratch.data.memset_async(number & 1, scratch.nbytes)
        start.record()
        fn()
        end.record()
        pairs.append((start, end))
    stream.synchronize()
    return [float(cupy.cuda.get_elapsed_time(start, end)) for start, end in pairs]


@cache
def _scratch(device: int) -> Any:
    cupy = import_cupy()
    return cupy.empty(4 * l2_bytes(device), cupy.uint8)


def enough(seconds: Sequence[float], repeats: int, each: float) -> bool:
    """Whether so many samples were taken, and they are together as long as so many of `each` seconds.

    Examples
    --------
    >>> enough([0.5, 0.5], 2, 0.2), enough([0.1, 0.1], 2, 0.2), enough([0.1] * 4, 2, 0.2), enough([9.0], 2, 0.2)
    (True, False, True, False)
    """
    return len(seconds) >= repeats and sum(seconds) >= repeats * each


class HostTime:
    """Looks at the host between samples: a core may be half as fast a second later, where machines share processors.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Nothing is looked at where nothing is launched.
    chosen : bool
        Look from a processor that is chosen as threads of several cards choose theirs, see `Processors`; else from the
        one that the calling thread is on.

    Examples
    --------
    >>> host = HostTime("cpu")
    >>> host.look()
    >>> host.metrics()
    {}
    """

    def __init__(self, device: str, chosen: bool = False) -> None:
        self._device, self._chosen, self._found = device, chosen, list[float]()

    def look(self) -> None:
        """Plan a hundred small launches, norms of a row each, and give them to the driver; waits for the device."""
        if self._device != "cuda":
            return
        if self._chosen:
            processors().choose()
        cupy = import_cupy()
        x, weight = (cupy.zeros(shape, np.float32) for shape in ((1, WIDTH), WIDTH))
        stream = cupy.cuda.get_current_stream()
        rms_norm(x, weight, 1e-6)  # which may load the kernel
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(TOGETHER):
            rms_norm(x, weight, 1e-6)
        self._found.append(time.perf_counter() - start)
        stream.synchronize()

    def metrics(self) -> dict[str, float]:
        """``launch_us``, the median microseconds of a launch; nothing if nothing was looked at."""
        return {"launch_us": median(self._found) / TOGETHER * 1e6} if self._found else {}
