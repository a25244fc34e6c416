"""Laps: seconds that a piece of work takes each time it is done, where it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sp.kernels import import_cupy, is_device


@dataclass
class Laps:
    """Adds up times; on the device by events, which nobody waits for before `seconds` is asked.

    Examples
    --------
    >>> import numpy as np
    >>> laps = Laps()
    >>> with laps.lap(np.zeros(1)):
    ...     pass
    >>> 0 < laps.seconds() < 1
    True
    """

    _host: float = 0.0
    _events: list[tuple[Any, Any]] = field(default_factory=list)

    @contextmanager
    def lap(self, array: Any) -> Iterator[None]:
        """The block is work on this array, and where it lies."""
        if not is_device(array):
            start = time.perf_counter()
            yield
            self._host += time.perf_counter() - start
            return
        cuda = import_cupy().cuda
        begun, ended, stream = cuda.Event(), cuda.Event(), cuda.get_current_stream()
        begun.record(stream)
        yield
        ended.record(stream)
        self._events.append((begun, ended))

    def seconds(self) -> float:
        """Of all laps; waits for the device."""
        cuda = import_cupy().cuda if self._events else None
        for _, ended in self._events:
            ended.synchronize()
        return self._host + sum(cuda.get_elapsed_time(*pair) for pair in self._events) / 1e3 if cuda else self._host
