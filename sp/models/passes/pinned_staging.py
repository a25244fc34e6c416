"""PinnedStaging: small arrays that the host fills anew each time and sends to one place on the device."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from sp.kernels import import_cupy


class PinnedStaging:
    """Arrays that go to the device in one copy, for work that reads them where they always lie.

    Parameters
    ----------
    fields : (dtype, size)
        By name.

    Attributes
    ----------
    device : dict of str to array
        Zeros at first.
    """

    def __init__(self, **fields: tuple[Any, int]) -> None:
        cupy = import_cupy()
        starts, size = {}, 0
        for name, (kind, count) in fields.items():
            starts[name] = size
            size += -(-count * np.dtype(kind).itemsize // 256) * 256
        self._pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
        self._buffer = cupy.zeros(size, np.uint8)
        self._sent = cupy.cuda.Event(disable_timing=True)
        self._host: dict[str, Any] = {}
        self.device: dict[str, Any] = {}
        for name, (kind, count) in fields.items():
            part = slice(starts[name], starts[name] + count * np.dtype(kind).itemsize)
            self._host[name], self.device[name] = self._pinned[part].view(kind), self._buffer[part].view(kind)
            self._host[name][:] = 0

    def __del__(self) -> None:
        """Others get the pinned memory now, and what was sent must have left it. A dying interpreter cannot wait."""
        with suppress(Exception):
            self._sent.synchronize()

    def open(self) -> dict[str, Any]:
        """The arrays to fill, once what was sent before has left them."""
        self._sent.synchronize()
        return self._host

    def send(self) -> None:
        """Copy everything, on the current stream."""
        cuda = import_cupy().cuda
        pointers, stream = (self._buffer.data.ptr, self._pinned.ctypes.data), cuda.get_current_stream()
        cuda.runtime.memcpyAsync(*pointers, len(self._pinned), cuda.runtime.memcpyHostToDevice, stream.ptr)
        self._sent.record(stream)
