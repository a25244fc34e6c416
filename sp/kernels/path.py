"""Choose between the two forms of a kernel: sm_90a (wgmma, bulk copies) or portable (sm_80 and newer)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from sp.errors import DeviceError, unknown_name
from sp.kernels.device import capability, current_device
from sp.kernels.setting import setting

PATHS = ("sm_90a", "portable")
_forced: ContextVar[str | None] = ContextVar("forced_path", default=None)


def native_path() -> str:
    """Return the faster path of the current device."""
    return "sm_90a" if capability(current_device()) == (9, 0) else "portable"


def current_path() -> str:
    """Return the path that ops take now: the forced one, or else the device's own."""
    return _forced.get() or native_path()


def forced_path(path: str) -> AbstractContextManager[None]:
    """Make ops take one path inside the block, e.g. to test or time the portable kernels on a newer GPU.

    Examples
    --------
    >>> with forced_path("portable"):
    ...     current_path()
    'portable'
    """
    if path not in PATHS:
        raise unknown_name("kernel path", path, PATHS)
    if path == "sm_90a" and native_path() != path:
        raise DeviceError("the sm_90a path needs a GPU of compute capability 9.0 (H100, H200, GH200); use 'portable'")
    return setting(_forced, path)
