"""Times of device work by CUDA events, of a host that plans launches, and by kernel; and the device memory it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, l2_bytes
from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.launch_replay import replay_disabled
from sp.kernels.setting import setting
from sp.models import Model
from sp.ops.norms import rms_norm
from sp.parallel.cpu_affinity import cpu_chooser

WIDTH, TOGETHER = 1024, 100
"""Of `HostTime`: values of a row, and launches between two looks at the clock, which fit into a stream's queue."""


class Spread(NamedTuple):
    """Median and quartiles of samples."""

    median: float
    low: float
    high: float


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles, by linear interpolation."""
    ordered = sorted(samples)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    return Spread(at(0.5), at(0.25), at(0.75))


def mode_of(graph: bool) -> str:
    """How `time_kernel` times, as keys have it: replays of a graph, or calls queued behind other work. Benchmarks of
    their own have "eager", single calls on an idle device, launch included, and "burst", calls back to back, until the
    GPU has settled at the clock that it can hold."""
    return "graph" if graph else "queued"


def time_kernel(
    fn: Callable[[], object], repeats: int = 20, flush_l2: bool = True, warmup: int = 3, graph: bool = False
) -> list[float]:
    """Milliseconds of each of `repeats` calls of `fn`, which queues work on the current stream and does not wait, or of
    replays of it as a CUDA graph. Before each a buffer larger than the L2 cache is written: `fn` then reads memory, and
    the host has time to queue it, so that one kernel is timed without its launch."""
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
    """Whether so many samples were taken, and they are together as long as so many of `each` seconds."""
    return len(seconds) >= repeats and sum(seconds) >= repeats * each


class HostTime:
    """Looks at the host between samples, if anything is launched on a device: a core may be half as fast a second
    later, where machines share processors. With `chosen` from a processor chosen as threads of several GPUs do."""

    def __init__(self, device: str, chosen: bool = False) -> None:
        self._device, self._chosen, self._found = device, chosen, list[float]()

    def look(self) -> None:
        """Plan a hundred small launches, norms of a row each, and give them to the driver; waits for the device."""
        if self._device != "cuda":
            return
        if self._chosen:
            cpu_chooser().choose()
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


QUIET = 1 << 30  # bytes written to keep the device busy while the host queues the work


@dataclass
class KernelTime:
    """All launches of one kernel in one variant and grid."""

    entry: str
    variant: str  # defines and grid
    launches: int = 0
    ms: float = 0.0  # in all


def kernel_times(work: Callable[[], object], hold_ms: float = 20.0) -> list[KernelTime]:
    """Run `work` with an event before and after every launch of a declared kernel; longest first. The device is kept
    busy for about `hold_ms`, more than the host needs to queue `work`, so that slower launches do not show as time of
    kernels; an event pair adds a microsecond or two to each."""
    cupy = import_cupy()
    seen: list[tuple[str, str, Any, Any]] = []
    plain = KernelSpec.launch

    def timed(self: KernelSpec, grid: tuple[int, ...], *values: Any, defines: Defines | None = None) -> None:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        plain(self, grid, *values, defines=defines)
        end.record()
        given = self.variants[0] if defines is None else defines
        seen.append((self.entry, f"{' '.join(f'{k}={v}' for k, v in given.items())} {grid}", start, end))

    stream = cupy.cuda.get_current_stream()
    busy = cupy.empty(QUIET, cupy.uint8)
    stream.synchronize()
    for _ in range(int(hold_ms / 0.3)):
        busy.data.memset_async(0, QUIET)
    KernelSpec.launch = timed  # type: ignore[method-assign]
    try:
        with setting(replay_disabled, True):
            work()
    finally:
        KernelSpec.launch = plain  # type: ignore[method-assign]
    stream.synchronize()
    found: dict[tuple[str, str], KernelTime] = {}
    for entry, variant, start, end in seen:
        total = found.setdefault((entry, variant), KernelTime(entry, variant))
        total.launches += 1
        total.ms += float(cupy.cuda.get_elapsed_time(start, end))
    return sorted(found.values(), key=lambda item: -item.ms)


def free_pool(model: Model) -> None:
    """Give memory of the test before back, so that the peak is that of this one."""
    if model.device == "cuda":
        import_cupy().get_default_memory_pool().free_all_blocks()


def pool_bytes(model: Model) -> int:
    """Bytes the pool has taken from the device since `free_pool`; it gives none back meanwhile."""
    return int(import_cupy().get_default_memory_pool().total_bytes()) if model.device == "cuda" else 0
