"""HostTime: how fast a host plans launches while something is timed, for short work waits for it."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from sp.kernels import import_cupy
from sp.ops.norms import rms_norm

WIDTH, TOGETHER = 1024, 100
"""Values of a row, and launches between two looks at the clock, which fit into a stream's queue."""


class HostTime:
    """Looks at the host between samples: a core may be half as fast a second later, where machines share processors.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Nothing is looked at where nothing is launched.

    Examples
    --------
    >>> host = HostTime("cpu")
    >>> host.look()
    >>> host.metrics()
    {}
    """

    def __init__(self, device: str) -> None:
        self._device, self._found = device, list[float]()

    def look(self) -> None:
        """Plan a hundred small launches, norms of a row each, and give them to the driver; waits for the device."""
        if self._device != "cuda":
            return
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
