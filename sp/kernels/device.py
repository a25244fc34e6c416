"""The GPU in use: whether an array lives on one, what it can do, and its errors in words a user can act on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np

from sp.errors import DeviceError, unknown_name
from sp.folders import cache_folder
from sp.kernels.setting import setting

INSTALL = "`pip install 'sp-prefill[cuda13]'` (driver 580 or newer) or `pip install 'sp-prefill[cuda12]'` installs it"

_left_free: ContextVar[int] = ContextVar("left_free", default=0)
_stand_in: ContextVar[Any] = ContextVar("stand_in", default=None)

NOT_READY = 600  # CUDA_ERROR_NOT_READY


def is_device(array: object) -> bool:
    """Whether an op given this array launches kernels: everything but a NumPy array does."""
    return not isinstance(array, np.ndarray)


@cache
def debugging() -> bool:
    """Whether ``SP_KERNEL_DEBUG`` asks for checks that cost time, in the host's code and in the kernels."""
    return os.environ.get("SP_KERNEL_DEBUG", "0") not in ("", "0")


def import_cupy() -> Any:
    """The ``cupy`` module, or DeviceError. Imported late: `sp` works without it on NumPy arrays."""
    stand_in = _stand_in.get()
    return _cupy() if stand_in is None else stand_in


def standing_in(module: Any) -> AbstractContextManager[None]:
    """Inside, `import_cupy` gives this in place of CuPy."""
    return setting(_stand_in, module)


@cache
def _cupy() -> Any:
    if "SP_CACHE_DIR" in os.environ:  # CuPy makes its own folder while it is imported
        os.environ.setdefault("CUPY_CACHE_DIR", str(cache_folder() / "cupy"))
    try:
        import cupy
    except ModuleNotFoundError as error:
        raise DeviceError(f"{error.name} is missing; {INSTALL}") from None
    except OSError as error:
        raise DeviceError(f"CuPy cannot start: {error}; name a writable folder in SP_CACHE_DIR") from None
    except ImportError as error:
        raise DeviceError(f"CuPy cannot start: {str(error).strip().splitlines()[-1]}; {INSTALL}") from None
    return cupy


@cache
def _properties(device: int) -> dict[str, Any]:
    """What the CUDA runtime says of a device: cudaDeviceProp by field."""
    with device_errors():
        return dict(import_cupy().cuda.runtime.getDeviceProperties(device))


@cache
def capability(device: int) -> tuple[int, int]:
    """Compute capability of a device, e.g. ``(9, 0)``."""
    properties = _properties(device)
    return int(properties["major"]), int(properties["minor"])


def device_name(device: int) -> str:
    """Name of a device, e.g. ``"NVIDIA H200"``."""
    return str(_properties(device)["name"].decode())


@cache
def multiprocessors(device: int) -> int:
    """Streaming multiprocessors of a device."""
    return int(_properties(device)["multiProcessorCount"])


def leaving_free(count: int) -> AbstractContextManager[None]:
    """Inside, kernels that stay on their multiprocessors leave so many to others that run beside them."""
    return setting(_left_free, count)


def multiprocessors_to_fill(device: int) -> int:
    """Those that a kernel which stays on all of them may take; see `leaving_free`."""
    return multiprocessors(device) - _left_free.get()


def shared_bytes_per_block(device: int) -> int:
    """Most shared memory that a block may ask for."""
    return int(_properties(device)["sharedMemPerBlockOptin"])


def shared_bytes_per_multiprocessor(device: int) -> int:
    """Shared memory that the blocks of a multiprocessor have together, 1 KiB of it reserved for each of them."""
    return int(_properties(device)["sharedMemPerMultiprocessor"])


def registers_per_multiprocessor(device: int) -> int:
    """32-bit registers that the blocks of a multiprocessor have together."""
    return int(_properties(device)["regsPerMultiprocessor"])


def l2_bytes(device: int) -> int:
    """Size of the L2 cache."""
    return int(_properties(device)["l2CacheSize"])


def current_device() -> int:
    """Number of the device that new arrays and launches use, or DeviceError where there is none."""
    try:
        return int(import_cupy().cuda.runtime.getDevice())
    except RuntimeError as error:
        raise DeviceError(explain(error) or str(error)) from error


def device_count() -> int:
    """Devices that CUDA shows this process."""
    with device_errors():
        return int(import_cupy().cuda.runtime.getDeviceCount())


def reach_each_other(devices: Sequence[int]) -> bool:
    """Whether each of these devices can be let read the memory of all others."""
    pairs = [(one, other) for one in devices for other in devices if one != other]
    with device_errors():
        return all(import_cupy().cuda.runtime.deviceCanAccessPeer(*pair) for pair in pairs)


def event_done(event: Any) -> bool:
    """Whether an event has happened. CuPy asks while it holds Python's lock. Where the driver lets the question wait,
    for a kernel that is being loaded, no thread of the process went on, nor would any notice."""
    status = int(driver().cuEventQuery(ctypes.c_void_p(event.ptr)))
    return bool(event.done) if status not in (0, NOT_READY) else status == 0  # CuPy knows what other numbers mean


@cache
def driver() -> Any:
    """The library of CUDA's driver, for calls that CuPy does not have, or not without its own work around them."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def import_nccl() -> Any:
    """CuPy's module of NCCL, which `import cupy` leaves out; None where the library is not found."""
    import_cupy()
    found = import_module("cupy.cuda.nccl")
    return found if found.available else None


def nccl_version() -> int:
    """NCCL's version number, e.g. 22809; 0 where CuPy does not find the library."""
    nccl = import_nccl()
    return 0 if nccl is None else int(nccl.get_version())


def require_device() -> tuple[int, int]:
    """Compute capability of the current device; DeviceError if kernels cannot run on it."""
    major, minor = capability(current_device())
    if major < 8:
        raise DeviceError(f"this card has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or newer")
    return major, minor


def pick_device(asked: str) -> Literal["cpu", "cuda"]:
    """Where a model is to run: as asked, and for ``auto`` on the GPU where kernels can run on one.

    >>> pick_device("cpu")
    'cpu'
    """
    if asked == "cpu":
        return "cpu"
    if asked not in ("auto", "cuda"):
        raise unknown_name("device", asked, ("auto", "cpu", "cuda"))
    if asked == "auto" and not _has_driver():
        return "cpu"  # the usual case without a GPU, told apart without importing CuPy
    try:
        require_device()
    except DeviceError:
        if asked == "cuda":
            raise
        return "cpu"
    return "cuda"


@cache
def _has_driver() -> bool:
    """Whether the library of an NVIDIA driver can be opened."""
    try:
        driver()
    except OSError:
        return False
    return True


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn what CuPy and CUDA raise inside the block into DeviceError."""
    try:
        yield
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        raise DeviceError(message) from error


def explain(error: BaseException) -> str | None:
    """One line on what a CUDA failure means and how to mend it; None for any other exception."""
    name = type(error).__name__
    text = " ".join(str(error).split())
    if name == "OutOfMemoryError":
        return f"the GPU's memory is full ({text}); use a shorter prompt, a lower --keep-ratio or smaller models"
    if name not in ("CUDARuntimeError", "CUDADriverError", "NVRTCError"):
        return None
    if "InsufficientDriver" in text:
        return "no NVIDIA driver, or one too old for this CuPy; install a newer one, or the extra cuda12"
    if "NoDevice" in text or "NO_DEVICE" in text:
        return "no CUDA device is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if "MemoryAllocation" in text or "OUT_OF_MEMORY" in text:
        return f"the GPU's memory is full ({text}); close other programs that use the card"
    return f"CUDA failed: {text}; run again with SP_KERNEL_DEBUG=1 to see in which kernel"
