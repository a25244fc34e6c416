"""Programmatic dependent launch: start a kernel while the previous one still finishes; from compute capability 9.0.

Such a kernel may at once read memory that neither the previous kernel nor another such one writes, such as weights;
before anything else it executes ``griddepcontrol.wait``, which returns when all earlier work is done (CUDA programming
guide, "Programmatic Dependent Launch"). A graph captures that edge, and only there it pays off: CuPy has no call for
it, and calling the driver from Python takes the host longer than a small kernel takes the device."""

from __future__ import annotations

import ctypes
from typing import Any

from sp.errors import DeviceError
from sp.kernels.device import driver, import_cupy
from sp.kernels.launch_replay import packed

PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, then a union of 64 bytes aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def launch_pdl(function: Any, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...], shared: int) -> None:
    """Launch `function`, a loaded kernel, on the current stream. `function`: see `sp.kernels.launch_replay`; `grid`: up
    to three sizes; `block`: threads; `arguments`: device arrays, NumPy scalars and tensor maps, as
    `sp.kernels.signature` returns them; `shared`: dynamic shared memory in bytes."""
    _values, pointers = packed(arguments)  # `pointers` refers to `_values`, which must stay alive
    attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
    config = _Config(
        (ctypes.c_uint * 3)(*grid, *(1,) * (3 - len(grid))),
        (ctypes.c_uint * 3)(block, 1, 1),
        shared,
        import_cupy().cuda.get_current_stream().ptr,
        ctypes.pointer(attribute),
        1,
    )
    status = driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function.ptr), pointers, None)
    if status:
        raise DeviceError(f"cuLaunchKernelEx failed with CUDA error {status}")
