"""TMA descriptors: an array's layout for the copy engine; encoded by the driver, passed to kernels by value."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels.signature import describe, rows_contiguous

TYPES = {"uint8": 0, "int8": 0, "uint16": 1, "uint32": 2, "int32": 3, "float16": 6, "float32": 7}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
KEPT = 32768
"""Size of the LRU cache of descriptors, about a kilobyte each: a 27B target on four GPUs and a drafter on each need
some thousands in turn; a cache with less room than for all of them would never hit."""


def tensor_map(
    array: Any, dims: tuple[int, ...], strides_bytes: tuple[int, ...], box: tuple[int, ...], swizzle: int = 128
) -> np.ndarray:
    """Return the descriptor of a strided tensor in device memory, one element of 128 bytes for a ``map`` argument.
    Boxes that reach past `dims` are filled with zeros when loaded and clipped when stored. The same address and shape
    return the same object.

    Parameters
    ----------
    array : cupy.ndarray
        Its address and element type are used, its shape is not; it must outlive every launch that uses the map.
    dims : tuple of int, extents in elements, fastest axis first, 1 to 5 of them
    strides_bytes : tuple of int, distance between neighbours along each axis but the first; multiples of 16
    box : tuple of int
        Extents of one copy, at most 256 each; the first in bytes is a multiple of 16, and at most `swizzle` bytes if
        there is one.
    swizzle : {0, 32, 64, 128}, row length of the shared-memory swizzle in bytes; 0 is none
    """
    if not hasattr(array.data, "ptr") or not rows_contiguous(array):
        raise DeviceError(f"tensor map: expected a device array with contiguous rows, got {describe(array)}")
    return _encode(array.data.ptr, array.dtype.str, dims, strides_bytes, box, swizzle)


@lru_cache(KEPT)
def _encode(
    address: int, kind: str, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> np.ndarray:
    dtype = np.dtype(kind).name  # takes a microsecond, so not part of every call
    what = f"tensor map of {dtype} {dims}, strides {strides}, box {box}, swizzle {swizzle}"
    rank = len(dims)
    if not (1 <= rank <= 5 and len(box) == rank and len(strides) == rank - 1):
        raise DeviceError(f"{what}: 1 to 5 dims, as many box extents, one stride fewer")
    if dtype not in TYPES or swizzle not in SWIZZLES:
        raise DeviceError(f"{what}: types {', '.join(TYPES)}; swizzles {', '.join(map(str, SWIZZLES))}")
    inner = box[0] * np.dtype(dtype).itemsize
    if inner % 16 or (swizzle and inner > swizzle) or not all(1 <= side <= 256 for side in box):
        raise DeviceError(f"{what}: the box's first extent is {inner} bytes (multiple of 16, within the swizzle)")
    if address % 16 or any(stride % 16 or not 0 < stride < 1 << 40 for stride in strides):
        raise DeviceError(f"{what}: address {address:#x} and strides must be multiples of 16 bytes")
    buffer = np.zeros(192, np.uint8)  # the driver wants 64-byte alignment, NumPy promises 16
    start = -buffer.ctypes.data % 64
    status = _encoder()(
        ctypes.c_void_p(buffer.ctypes.data + start),
        TYPES[dtype],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * max(rank - 1, 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # no interleave
        SWIZZLES[swizzle],
        2,  # L2 promotion to 128 bytes
        0,  # out of bounds reads as zero
    )
    if status:
        raise DeviceError(f"{what}: cuTensorMapEncodeTiled failed with status {status}")
    made = np.dtype("V128", metadata={"made": (address, kind, dims, strides, box, swizzle)})
    return buffer[start : start + 128].view(made).copy()  # of a dtype with fields CuPy would ask for each at a launch


def mapped(value: Any) -> int | None:
    """Return the address of the tensor of a map; None for any other value."""
    made = value.dtype.metadata if isinstance(value, np.ndarray) else None
    return None if made is None else int(made["made"][0])


def map_at(found: np.ndarray, address: int) -> np.ndarray:
    """Return the same map for a tensor at another address. `found`: from `tensor_map`; `address`: on the device,
    aligned as before."""
    assert found.dtype.metadata is not None
    return _encode(address, *found.dtype.metadata["made"][1:])


@cache
def _encoder() -> Any:
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        raise DeviceError("tensor maps need an NVIDIA driver of CUDA 12.0 or newer") from None
    function.restype = ctypes.c_int
    return function
