"""kernel_times: which kernels a piece of work spends the device's time in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sp.kernels import import_cupy
from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.repeats import watched
from sp.kernels.setting import setting

QUIET = 1 << 30  # bytes written to keep the device busy while the host queues the work


@dataclass
class KernelTime:
    """All launches of one kernel in one variant and grid.

    Attributes
    ----------
    entry : str
    variant : str
        Defines and grid.
    launches : int
    ms : float
        In all.
    """

    entry: str
    variant: str
    launches: int = 0
    ms: float = 0.0


def kernel_times(work: Callable[[], object], hold_ms: float = 20.0) -> list[KernelTime]:
    """Run `work` with an event before and after every launch of a declared kernel.

    Parameters
    ----------
    work : callable
        Queues device work on the current stream and does not wait for it.
    hold_ms : float
        About how long the device is kept busy first, so that the host's launches, slower under observation, do not
        show as time of kernels. More than the host needs to queue `work`.

    Returns
    -------
    list of KernelTime
        Longest first. An event pair adds a microsecond or two to every launch.
    """
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
        with setting(watched, True):
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
