"""PinnedWeight: a packed weight in pinned host memory, which the device's kernels can read where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device
from sp.ops.matmul.fragment_order import plane_offsets
from sp.ops.matmul.packed import PackedWeight, allocate, pack_rows
from sp.quant import BlockFormat
from sp.quant.packing import TILE

PLANES = ("low", "high", "scales", "deltas")


class PinnedWeight(PackedWeight):
    """A `PackedWeight` whose bytes lie on the host, at an address that is the device's too.

    `data` is an array of CuPy's over them: launches take it as any other, and read over the bus what they touch. It is
    none of the arrays that a model's parts take along when they move.
    """


def allocate_pinned(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> PinnedWeight:
    """An unfilled weight in pinned memory of the host. ModelError: `fmt` and `shape` have no fragment order;
    DeviceError: the host has not so much memory that can be pinned."""
    cupy, nbytes = import_cupy(), plane_offsets(name, fmt, shape).end
    try:
        # Not from CuPy's pool of pinned memory, which rounds up to powers of two.
        memory = cupy.cuda.PinnedMemory(nbytes)
    except Exception as error:
        if "MemoryAllocation" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise DeviceError(
            f"{name}: {nbytes / 2**20:.0f} MiB of experts that wait in host memory cannot be pinned there; free memory "
            "of the host or give a larger --vram"
        ) from error
    lent = cupy.cuda.UnownedMemory(memory.ptr, nbytes, memory, current_device())
    data = cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(lent, 0))
    return PinnedWeight(name, fmt, (int(shape[0]), int(shape[1])), data)


def pack_rows_pinned(w: PinnedWeight, start: int, rows: Any) -> None:
    """`pack_rows` by way of the device, which holds those rows meanwhile; the copy may still be under way. `start`: a
    multiple of 64. `rows`, cupy uint8 (n, row_bytes): as in the file."""
    cupy = import_cupy()
    piece = allocate(w.name, w.format, (len(rows), w.shape[1]))
    pack_rows(piece, 0, rows)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    for name in PLANES:
        part, whole = piece.plane(name), w.plane(name)
        if part is not None:
            to = whole[start // TILE * (len(whole) // w.row_tiles) :]
            runtime.memcpyAsync(to.data.ptr, part.data.ptr, part.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
