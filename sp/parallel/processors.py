"""Which processors of the host are fast just now, for a thread that a device waits for, or for several in turn."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import inf

LOOKS = 4  # most processors that are looked at before the fastest of them is taken. Six find no faster ones
SLOW = 1.4
"""How much longer than the fastest one that was seen a processor may take. One that shares its core takes 1.6 to 2.8
times as long (``results/nvidia-h200/notes-cards.md``)."""
FORGET = 1.01
"""How much slower the fastest one is taken to be with every choice: clocks fall when all cores are at work."""
STEPS = 300  # of a look: some 30 us of what a host does to plan a launch, looking up and making small objects


class Processors:
    """Chooses a processor by how fast it is: the seconds that the calling thread's takes to `look`.

    Machines that share their cores give some virtual processors a core that somebody else is on, too, for a second or
    for minutes. The system inside such a machine does not know, and a thread that plans launches is half as fast there.

    >>> processors = Processors()
    >>> processors.choose() in (None, present())
    True
    """

    def __init__(self, look: Callable[[], float] | None = None) -> None:
        self._look, self._lock, self._fastest = look or look_at, threading.Lock(), 0.0
        self._last: int | None = None

    def choose(self) -> int | None:
        """Move the calling thread to a processor that is fast now, where it is held no longer, and tell its number. The
        one that was chosen last comes first; if it is about as fast as any was, it is taken without a look at others,
        of which each takes some 0.1 ms. None where a thread cannot be held to one, which stays where it is."""
        with self._lock:
            here = present()
            if here is None:
                return None
            before = os.sched_getaffinity(0)
            first, found = self._last if self._last in before else here, dict[int, float]()
            try:
                for number in _spread(sorted(before), first):
                    os.sched_setaffinity(0, {number})
                    found[number] = self._look()
                    if found[number] <= SLOW * self._fastest:
                        break
                self._last = min(found, key=lambda number: found[number])
                os.sched_setaffinity(0, {self._last})
            except OSError:  # a sandbox may not let it
                return None
            finally:
                with suppress(OSError):
                    os.sched_setaffinity(0, before)
            self._fastest = min(FORGET * self._fastest or inf, found[self._last])
            return self._last


@cache
def processors() -> Processors:
    """Those of this machine, with what this process has seen of them."""
    return Processors()


def present() -> int | None:
    """The processor that the calling thread is on; None where it cannot be held to one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = int(ctypes.CDLL(None).sched_getcpu())
    return core if core in os.sched_getaffinity(0) else None


def look_at() -> float:
    """Seconds of the faster of two rounds: the first one finds the caches of another processor empty."""
    rounds = []
    for _ in range(2):
        start, seen = time.perf_counter(), dict[int, tuple[int, object]]()
        for step in range(STEPS):
            seen[step & 63] = step, seen.get(step - 1 & 63) is None
        rounds.append(time.perf_counter() - start)
    return min(rounds)


def _spread(numbers: list[int], first: int) -> list[int]:
    """Some of them, `first` and others far apart: neighbours may be two halves of a core.

    >>> _spread(list(range(32)), 30), _spread([0, 1], 1)
    ([30, 6, 14, 22], [1, 0])
    """
    at, apart = numbers.index(first), max(1, len(numbers) // LOOKS)
    return [numbers[(at + i * apart) % len(numbers)] for i in range(min(LOOKS, len(numbers)))]


class OneCore:
    """A processor that is fast when the first thread comes, which moves there, as do those which come later.

    What a thread needs to queue a layer is in that processor's caches when the thread before has queued the same layer
    of another card, and whoever is next is woken where the present one runs. On a host of 64 processors four cards were
    given their work 1.4 to 1.7 times as fast so. Where threads cannot be held to a processor, which is so off Linux,
    they stay wherever they like.
    """

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), False
        self.number: int | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread stays there until it leaves."""
        with self._lock:
            if not self._known:
                self.number, self._known = processors().choose(), True
        if self.number is None:
            yield
            return
        before = os.sched_getaffinity(0)
        with suppress(OSError):  # a sandbox may not let it
            os.sched_setaffinity(0, {self.number})
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, before)
