"""OneCore: threads that take turns at Python anyway, on one processor of the host."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sp.parallel.processors import processors


class OneCore:
    """A processor that is fast when the first thread comes, which moves there, as do those which come later.

    What a thread needs to queue a layer is in that processor's caches when the thread before has queued the same layer
    of another card, and whoever is next is woken where the present one runs. On a host of 64 processors four cards were
    given their work 1.4 to 1.7 times as fast so. Where threads cannot be held to a processor, which is so off Linux,
    they stay wherever they like.

    Examples
    --------
    >>> from sp.parallel.processors import present
    >>> core = OneCore()
    >>> with core.inside():
    ...     print(core.number in (None, present()))
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
