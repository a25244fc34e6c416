"""Times of device work by CUDA events and by kernel, times of launches on the host, and device memory."""

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
"""Values of a row and launches per sample of `HostTime`; so many launches fit into a stream's queue."""


class Spread(NamedTuple):
    """Median and quartiles of samples."""

    median: float
    low: float
    high: float


def quartiles(samples: Sequence[float]) -> Spread:
    """Compute median and quartiles by linear interpolation."""
    ordered = sorted(samples)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    return Spread(quantile(0.5), quantile(0.25), quantile(0.75))


def mode_of(graph: bool) -> str:
    """Name the mode of `time_kernel` as record keys have it: replays of a graph, or calls queued behind other work.
    Other benchmarks use "eager" (single calls on an idle device, launch included) and "burst" (calls back to back until
    the GPU runs at the clock that it can sustain)."""
    return "graph" if graph else "queued"


def time_kernel(
    fn: Callable[[], object], repeats: int = 20, flush_l2: bool = True, warmup: int = 3, graph: bool = False
) -> list[float]:
    """Return the milliseconds of each of `repeats` calls of `fn`, or of its replays as a CUDA graph. `fn` queues work
    on the current stream and does not wait. Before each call a buffer larger than the L2 cache is written, so that `fn`
    reads from memory and the host has time to queue it: a kernel is timed without its launch."""
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


def enough(seconds: Sequence[float], repeats: int, target_seconds: float) -> bool:
    """Return True after at least `repeats` samples that last at least `repeats * target_seconds` together."""
    return len(seconds) >= repeats and sum(seconds) >= repeats * target_seconds


class HostTime:
    """Measures launches on the host between samples, if the device is a GPU: on shared machines a core may be half as
    fast a second later. With `chosen`, on a core chosen in the way that threads of several GPUs do."""

    def __init__(self, device: str, chosen: bool = False) -> None:
        self._device, self._chosen, self._samples = device, chosen, list[float]()

    def look(self) -> None:
        """Time a hundred small launches, norms of one row each, until the driver has them; then wait for the device."""
        if self._device != "cuda":
            return
        if self._chosen:
            cpu_chooser().choose()
        cupy = import_cupy()
        x, weight = (cupy.zeros(shape, np.float32) for shape in ((1, WIDTH), WIDTH))
        stream = cupy.cuda.get_current_stream()
        rms_norm(x, weight, 1e-6)  # may load the kernel, so it is not timed
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(TOGETHER):
            rms_norm(x, weight, 1e-6)
        self._samples.append(time.perf_counter() - start)
        stream.synchronize()

    def metrics(self) -> dict[str, float]:
        """``launch_us``, the median microseconds of a launch; empty without samples."""
        return {"launch_us": median(self._samples) / TOGETHER * 1e6} if self._samples else {}


BUSY_BYTES = 1 << 30  # written to keep the device busy while the host queues the work


@dataclass
class KernelTime:
    """Total time of all launches of one kernel in one variant and grid."""

    entry: str
    variant: str  # defines and grid
    launches: int = 0
    ms: float = 0.0  # total


def kernel_times(work: Callable[[], object], hold_ms: float = 20.0) -> list[KernelTime]:
    """Run `work` with an event before and after every launch of a declared kernel; the longest total comes first. The
    device is first kept busy for about `hold_ms`, longer than the host needs to queue `work`, so that slow launches do
    not count as time of kernels. A pair of events adds a microsecond or two to each launch."""
    cupy = import_cupy()
    seen: list[tuple[str, str, Any, Any]] = []
    plain = KernelSpec.launch

    def timed(self: KernelSpec, grid: tuple[int, ...], *values: Any, defines: Defines | None = None) -> None:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        plain(self, grid, *values, defines=defines)
        end.record()
        chosen = self.variants[0] if defines is None else defines
        seen.append((self.entry, f"{' '.join(f'{k}={v}' for k, v in chosen.items())} {grid}", start, end))

    stream = cupy.cuda.get_current_stream()
    busy = cupy.empty(BUSY_BYTES, cupy.uint8)
    stream.synchronize()
    for _ in range(int(hold_ms / 0.3)):
        busy.data.memset_async(0, BUSY_BYTES)
    KernelSpec.launch = timed  # type: ignore[method-assign]
    try:
        with setting(replay_disabled, True):
            work()
    finally:
        KernelSpec.launch = plain  # type: ignore[method-assign]
    stream.synchronize()
    totals: dict[tuple[str, str], KernelTime] = {}
    for entry, variant, start, end in seen:
        total = totals.setdefault((entry, variant), KernelTime(entry, variant))
        total.launches += 1
        total.ms += float(cupy.cuda.get_elapsed_time(start, end))
    return sorted(totals.values(), key=lambda kernel: -kernel.ms)


def free_pool(model: Model) -> None:
    """Free unused memory of the pool, so that the peak of the next test is its own."""
    if model.device == "cuda":
        import_cupy().get_default_memory_pool().free_all_blocks()


def pool_bytes(model: Model) -> int:
    """Return the bytes that the pool holds: the peak since `free_pool`, since the pool only grows in between."""
    return int(import_cupy().get_default_memory_pool().total_bytes()) if model.device == "cuda" else 0
