"""Memory that a measurement takes: of this process on the CPU, watched by a thread, and of the device's pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sp.kernels import import_cupy
from sp.models import Model
from sp.trace import peak_bytes

PERIOD = 0.002  # seconds between two looks
PAGE = 4096


def resident_bytes() -> int:
    """Resident memory now; the most so far where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return peak_bytes()


@contextmanager
def watched() -> Iterator[list[tuple[float, int]]]:
    """Seconds since the start and `resident_bytes`, about every `PERIOD`, in a list that grows until the block ends."""
    seen: list[tuple[float, int]] = []
    start, done = time.perf_counter(), threading.Event()

    def look() -> None:
        while not done.wait(PERIOD):
            seen.append((time.perf_counter() - start, resident_bytes()))

    thread = threading.Thread(target=look, name="sp-memory", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen.append((time.perf_counter() - start, resident_bytes()))


def thinned(seen: Sequence[tuple[float, int]], most: int = 400) -> list[tuple[float, int]]:
    """At most about `most` points of a timeline, the highest of every group, so that no peak is lost.

    Examples
    --------
    >>> thinned([(0.0, 1), (0.1, 5), (0.2, 2), (0.3, 2)], 2)
    [(0.1, 5), (0.2, 2)]
    """
    step = -(-len(seen) // most)
    return [max(seen[i : i + step], key=lambda point: point[1]) for i in range(0, len(seen), step)] if seen else []


def free_pool(model: Model) -> None:
    """Give memory of the test before back, so that the peak is that of this one."""
    if model.device == "cuda":
        import_cupy().get_default_memory_pool().free_all_blocks()


def pool_bytes(model: Model) -> int:
    """Bytes the pool has taken from the device since `free_pool`; it gives none back meanwhile."""
    return int(import_cupy().get_default_memory_pool().total_bytes()) if model.device == "cuda" else 0
