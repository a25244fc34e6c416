"""Driver version and clocks, from the driver's management library."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, e.g. ``"580.95.05"``; None without one."""
    library, text = _library(), ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, 96):
        return None
    return text.value.decode()


def clocks_mhz(bus_id: str) -> dict[str, int]:
    """Return the current clocks in MHz of the GPU at a PCI bus id; empty if the driver does not report them."""
    library, handle = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)):
        return {}
    clocks, value = {}, ctypes.c_uint()
    for name, kind in (("sm", 1), ("memory", 2)):
        if library.nvmlDeviceGetClockInfo(handle, kind, ctypes.byref(value)) == 0:
            clocks[name] = value.value
    return clocks
