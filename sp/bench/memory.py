"""Memory of this process: what it holds, its peak, and a thread that watches it while a request runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sp.kernels import import_cupy
from sp.trace import peak_bytes

Device = Literal["cpu", "cuda"]
PERIOD = 0.002  # seconds between two looks
PAGE = 4096


def free_unused(device: Device) -> None:
    """Give memory that nothing uses back, so that the peak from here on is that of what follows."""
    if device == "cuda":
        import_cupy().get_default_memory_pool().free_all_blocks()


def peak_since_free(device: Device) -> int:
    """Bytes the pool has taken from the device since `free_unused`; on the CPU the largest resident memory so far."""
    return int(import_cupy().get_default_memory_pool().total_bytes()) if device == "cuda" else peak_bytes()


def used_bytes(device: Device) -> int:
    """Bytes of arrays on the device; on the CPU resident memory."""
    if device == "cuda":
        return int(import_cupy().get_default_memory_pool().used_bytes())
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return peak_bytes()


@contextmanager
def watched(device: Device) -> Iterator[list[tuple[float, int]]]:
    """Seconds since the start and `used_bytes`, about every `PERIOD`, in a list that grows until the block ends."""
    seen: list[tuple[float, int]] = []
    start, done = time.perf_counter(), threading.Event()

    def look() -> None:
        while not done.wait(PERIOD):
            seen.append((time.perf_counter() - start, used_bytes(device)))

    thread = threading.Thread(target=look, name="sp-memory", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen.append((time.perf_counter() - start, used_bytes(device)))


def thinned(seen: list[tuple[float, int]], most: int = 400) -> list[tuple[float, int]]:
    """At most about `most` points of a timeline, the highest of every group, so that no peak is lost.

    Examples
    --------
    >>> thinned([(0.0, 1), (0.1, 5), (0.2, 2), (0.3, 2)], 2)
    [(0.1, 5), (0.2, 2)]
    """
    step = -(-len(seen) // most)
    return [max(seen[i : i + step], key=lambda point: point[1]) for i in range(0, len(seen), step)] if seen else []
