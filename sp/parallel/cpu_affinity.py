"""CPU affinity: choose a CPU of the host that is fast now, for a thread that a device waits for, or for several in
turn."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import inf

PROBES = 4  # most CPUs that are timed before the fastest of them is chosen; six found no faster ones
SLOW = 1.4
"""Most time that a chosen CPU may take relative to the fastest one seen. A virtual CPU whose core is shared takes 1.6
to 2.8 times as long (``results/nvidia-h200/notes-cards.md``)."""
FORGET = 1.01
"""Factor by which the fastest time seen grows with every choice, because clocks fall when all cores are busy."""
STEPS = 300  # of a probe: about 30 us of dict look-ups and small objects, as in a host that plans launches


class CpuChooser:
    """Choose a CPU by its speed: the seconds that the calling thread takes for a `probe` on it.

    Machines that share their cores run some virtual CPUs on a core that another machine uses too, for a second or
    for minutes. The system inside such a machine does not know, and a thread that plans launches is half as fast there.

    >>> chooser = CpuChooser()
    >>> chooser.choose() in (None, current_cpu())
    True
    """

    def __init__(self, time_cpu: Callable[[], float] | None = None) -> None:
        self._time_cpu, self._lock, self._fastest = time_cpu or probe, threading.Lock(), 0.0
        self._last: int | None = None

    def choose(self) -> int | None:
        """Move the calling thread to a CPU that is fast now and return its number; afterwards the thread is free to
        move. The last choice is timed first; if it is about as fast as any so far, it is chosen without timing others,
        each of which takes some 0.1 ms. Return None where a thread cannot be pinned; it stays where it is."""
        with self._lock:
            here = current_cpu()
            if here is None:
                return None
            before = os.sched_getaffinity(0)
            first, seconds = self._last if self._last in before else here, dict[int, float]()
            try:
                for number in _far_apart(sorted(before), first):
                    os.sched_setaffinity(0, {number})
                    seconds[number] = self._time_cpu()
                    if seconds[number] <= SLOW * self._fastest:
                        break
                self._last = min(seconds, key=lambda number: seconds[number])
                os.sched_setaffinity(0, {self._last})
            except OSError:  # a sandbox may forbid it
                return None
            finally:
                with suppress(OSError):
                    os.sched_setaffinity(0, before)
            self._fastest = min(FORGET * self._fastest or inf, seconds[self._last])
            return self._last


@cache
def cpu_chooser() -> CpuChooser:
    """Return the chooser of this process, which remembers the speeds it has seen."""
    return CpuChooser()


def current_cpu() -> int | None:
    """Return the CPU that the calling thread is on, or None where a thread cannot be pinned."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = int(ctypes.CDLL(None).sched_getcpu())
    return core if core in os.sched_getaffinity(0) else None


def probe() -> float:
    """Return the seconds of the faster of two rounds: the first one finds the caches of another CPU cold."""
    rounds = []
    for _ in range(2):
        start, seen = time.perf_counter(), dict[int, tuple[int, object]]()
        for step in range(STEPS):
            seen[step & 63] = step, seen.get(step - 1 & 63) is None
        rounds.append(time.perf_counter() - start)
    return min(rounds)


def _far_apart(numbers: list[int], first: int) -> list[int]:
    """Return up to `PROBES` CPUs, `first` and others far from it: neighbours may be two hyperthreads of a core.

    >>> _far_apart(list(range(32)), 30), _far_apart([0, 1], 1)
    ([30, 6, 14, 22], [1, 0])
    """
    index, stride = numbers.index(first), max(1, len(numbers) // PROBES)
    return [numbers[(index + i * stride) % len(numbers)] for i in range(min(PROBES, len(numbers)))]


class SharedCpu:
    """One CPU for the launching threads of all GPUs: it is chosen when the first thread arrives, and the others move
    there.

    The data that a thread needs to queue a layer is in that CPU's caches when the thread before has queued the same
    layer of another GPU, and the next thread is woken where the current one runs. On a host of 64 CPUs, four GPUs
    were given their work 1.4 to 1.7 times as fast. Where threads cannot be pinned, as on systems other than Linux, they
    stay where they are."""

    def __init__(self) -> None:
        self._lock, self._chosen = threading.Lock(), False
        self.number: int | None = None

    @contextmanager
    def pin(self) -> Iterator[None]:
        """Pin the calling thread to the CPU inside the block."""
        with self._lock:
            if not self._chosen:
                self.number, self._chosen = cpu_chooser().choose(), True
        if self.number is None:
            yield
            return
        before = os.sched_getaffinity(0)
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setaffinity(0, {self.number})
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, before)
