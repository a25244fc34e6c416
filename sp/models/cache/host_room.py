"""HostRoom: host memory that arrays of the device are copied into and out of at the full rate of the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sp.arrays import Bytes
from sp.kernels import import_cupy, is_device

ALIGN = 256
STEPS = 8
"""Rooms are at least this many times larger than the steps by which they grow: to pin memory takes long."""


class HostRoom:
    """One buffer, pinned if it is for what comes from the device, and then kept to be used again.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Where the arrays are.

    Examples
    --------
    >>> room = HostRoom("cpu")
    >>> at = room.places([3, 5])
    >>> [(len(each), each.dtype.name) for each in at], room.nbytes
    ([(3, 'uint8'), (5, 'uint8')], 512)
    """

    def __init__(self, device: Literal["cpu", "cuda"]) -> None:
        self._pinned = device == "cuda"
        self._memory: Bytes = np.empty(0, np.uint8)

    def places(self, sizes: list[int]) -> list[Bytes]:
        """Room for so many bytes each; what earlier ones held is lost."""
        starts = np.cumsum([0, *(-(-size // ALIGN) * ALIGN for size in sizes)]).tolist()
        if starts[-1] > len(self._memory):
            self._memory = np.empty(0, np.uint8)  # before more is asked for
            self._memory = self._made(starts[-1])
        return [self._memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def leave(self) -> None:
        """What it holds is no longer needed: memory that is not pinned goes."""
        if not self._pinned:
            self.clear()

    def clear(self) -> None:
        """Let go of all memory."""
        self._memory = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return len(self._memory)

    def _made(self, size: int) -> Bytes:
        if not self._pinned:
            return np.empty(size, np.uint8)
        step = max(1 << 20, (1 << size.bit_length()) // (2 * STEPS))
        size = -(-size // step) * step
        cuda = import_cupy().cuda
        # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
        return np.frombuffer(cuda.PinnedMemoryPointer(cuda.PinnedMemory(size), 0), np.uint8, size)


def copy_out(source: Any, to: Any) -> None:
    """Copy an array into one of the host as large; from the device on its stream, and the host does not wait."""
    if not is_device(source):
        to[...] = source
        return
    runtime, stream = import_cupy().cuda.runtime, import_cupy().cuda.get_current_stream()
    runtime.memcpyAsync(to.ctypes.data, source.data.ptr, to.nbytes, runtime.memcpyDeviceToHost, stream.ptr)


def copy_in(to: Any, source: Any) -> None:
    """The other way round."""
    if not is_device(to):
        to[...] = source
        return
    runtime, stream = import_cupy().cuda.runtime, import_cupy().cuda.get_current_stream()
    runtime.memcpyAsync(to.data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, stream.ptr)


def looked_at(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of one place, on the host, to be looked at and not kept: pinned memory is scarce.

    Those of the device are as they are by then, and all are waited for at once.
    """
    if not arrays or not is_device(arrays[0]):
        return list(arrays)
    arrays = [one if one.flags.c_contiguous else import_cupy().ascontiguousarray(one) for one in arrays]
    ends = np.cumsum([-(-one.nbytes // 8) * 8 for one in arrays])
    pinned = np.frombuffer(import_cupy().cuda.alloc_pinned_memory(int(ends[-1])), np.uint8, int(ends[-1]))
    found = []
    for one, start in zip(arrays, (0, *ends), strict=False):
        found.append(pinned[start : start + one.nbytes].view(one.dtype).reshape(one.shape))
        copy_out(one, found[-1])
    wait()
    return found


def wait() -> None:
    """Until all copies from and to the device are done."""
    import_cupy().cuda.get_current_stream().synchronize()
