"""launch_us: how fast a host plans launches, which short work waits for."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from sp.kernels import import_cupy
from sp.ops.norms import rms_norm

WIDTH, TOGETHER, TIMES = 1024, 100, 9
"""Values of a row, launches between two looks at the clock, which fit into a stream's queue, and such looks."""


def launch_us() -> float:
    """Microseconds in which the host plans a small launch and gives it to the driver: norms of a row, one a launch.

    Median of several times a hundred, on the present device; takes a few hundredths of a second.
    """
    cupy = import_cupy()
    x, weight = (cupy.ones(shape, np.float32) for shape in ((1, WIDTH), WIDTH))
    stream, found = cupy.cuda.get_current_stream(), []
    rms_norm(x, weight, 1e-6)  # loads the kernel
    for _ in range(TIMES):
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(TOGETHER):
            rms_norm(x, weight, 1e-6)
        found.append(time.perf_counter() - start)
    stream.synchronize()
    return median(found) / TOGETHER * 1e6
