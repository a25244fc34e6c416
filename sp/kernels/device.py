"""The current GPU: device arrays, hardware properties, and CUDA errors in words that users can act on."""

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
    """Return True if ops launch kernels for this array, which is so for every array except NumPy's."""
    return not isinstance(array, np.ndarray)


@cache
def debugging() -> bool:
    """Return True if ``SP_KERNEL_DEBUG`` enables checks that cost time, on the host and in kernels."""
    return os.environ.get("SP_KERNEL_DEBUG", "0") not in ("", "0")


def import_cupy() -> Any:
    """Return the ``cupy`` module, imported on first use because `sp` works without it on NumPy arrays; DeviceError
    without it."""
    stand_in = _stand_in.get()
    return _cupy() if stand_in is None else stand_in


def standing_in(module: Any) -> AbstractContextManager[None]:
    """Make `import_cupy` return `module` in place of CuPy inside the block."""
    return setting(_stand_in, module)


@cache
def _cupy() -> Any:
    if "SP_CACHE_DIR" in os.environ:  # CuPy creates its own cache folder on import
        os.environ.setdefault("CUPY_CACHE_DIR", str(cache_folder() / "cupy"))
    try:
        import cupy
    except ModuleNotFoundError as error:
        raise DeviceError(f"{error.name} is missing; {INSTALL}") from None
    except OSError as error:
        raise DeviceError(f"CuPy cannot start: {error}; set SP_CACHE_DIR to a writable folder") from None
    except ImportError as error:
        raise DeviceError(f"CuPy cannot start: {str(error).strip().splitlines()[-1]}; {INSTALL}") from None
    return cupy


@cache
def _properties(device: int) -> dict[str, Any]:
    """Return the CUDA runtime's properties of a device: cudaDeviceProp by field."""
    with device_errors():
        return dict(import_cupy().cuda.runtime.getDeviceProperties(device))


@cache
def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device, e.g. ``(9, 0)``."""
    properties = _properties(device)
    return int(properties["major"]), int(properties["minor"])


def device_name(device: int) -> str:
    """Return the name of a device, e.g. ``"NVIDIA H200"``."""
    return str(_properties(device)["name"].decode())


@cache
def multiprocessors(device: int) -> int:
    """Return the number of streaming multiprocessors of a device."""
    return int(_properties(device)["multiProcessorCount"])


def leaving_free(count: int) -> AbstractContextManager[None]:
    """Make persistent kernels leave `count` multiprocessors to kernels that overlap with them, inside the block."""
    return setting(_left_free, count)


def multiprocessors_to_fill(device: int) -> int:
    """Return the number of multiprocessors that a persistent kernel may occupy; see `leaving_free`."""
    return multiprocessors(device) - _left_free.get()


def shared_bytes_per_block(device: int) -> int:
    """Return the most shared memory that a block may request, in bytes."""
    return int(_properties(device)["sharedMemPerBlockOptin"])


def shared_bytes_per_multiprocessor(device: int) -> int:
    """Return the shared memory of a multiprocessor in bytes; each of its blocks uses 1 KiB more than it requests."""
    return int(_properties(device)["sharedMemPerMultiprocessor"])


def registers_per_multiprocessor(device: int) -> int:
    """Return the number of 32-bit registers of a multiprocessor."""
    return int(_properties(device)["regsPerMultiprocessor"])


def l2_bytes(device: int) -> int:
    """Return the size of the L2 cache in bytes."""
    return int(_properties(device)["l2CacheSize"])


def current_device() -> int:
    """Return the number of the device that new arrays and launches use; DeviceError if there is none."""
    try:
        return int(import_cupy().cuda.runtime.getDevice())
    except RuntimeError as error:
        raise DeviceError(explain(error) or str(error)) from error


def device_count() -> int:
    """Return the number of devices that this process sees."""
    with device_errors():
        return int(import_cupy().cuda.runtime.getDeviceCount())


def reach_each_other(devices: Sequence[int]) -> bool:
    """Return True if peer access is possible between all of these devices."""
    pairs = [(first, second) for first in devices for second in devices if first != second]
    with device_errors():
        return all(import_cupy().cuda.runtime.deviceCanAccessPeer(*pair) for pair in pairs)


def event_done(event: Any) -> bool:
    """Return True if an event has happened. CuPy's own query holds Python's lock: if the driver blocks it, for a kernel
    that is being loaded, all threads of the process stop, and no timeout would notice."""
    status = int(driver().cuEventQuery(ctypes.c_void_p(event.ptr)))
    return bool(event.done) if status not in (0, NOT_READY) else status == 0  # CuPy raises for other status codes


@cache
def driver() -> Any:
    """Return the CUDA driver's library, for calls that CuPy lacks or wraps with work of its own."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def import_nccl() -> Any:
    """Return CuPy's NCCL module, which `import cupy` does not import; None if the library is not found."""
    import_cupy()
    nccl = import_module("cupy.cuda.nccl")
    return nccl if nccl.available else None


def nccl_version() -> int:
    """Return NCCL's version number, e.g. 22809; 0 if CuPy does not find the library."""
    nccl = import_nccl()
    return 0 if nccl is None else int(nccl.get_version())


def require_device() -> tuple[int, int]:
    """Return the compute capability of the current device; DeviceError if kernels cannot run on it."""
    major, minor = capability(current_device())
    if major < 8:
        raise DeviceError(f"this GPU has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or newer")
    return major, minor


def pick_device(name: str) -> Literal["cpu", "cuda"]:
    """Choose the device of a model by an option's value; ``auto`` means the GPU if kernels can run on one.

    >>> pick_device("cpu")
    'cpu'
    """
    if name == "cpu":
        return "cpu"
    if name not in ("auto", "cuda"):
        raise unknown_name("device", name, ("auto", "cpu", "cuda"))
    if name == "auto" and not _has_driver():
        return "cpu"  # the usual case without a GPU, detected without importing CuPy
    try:
        require_device()
    except DeviceError:
        if name == "cuda":
            raise
        return "cpu"
    return "cuda"


@cache
def _has_driver() -> bool:
    """Return True if the library of an NVIDIA driver can be opened."""
    try:
        driver()
    except OSError:
        return False
    return True


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn exceptions of CuPy and CUDA inside the block into DeviceError."""
    try:
        yield
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        raise DeviceError(message) from error


def explain(error: BaseException) -> str | None:
    """Return one line about the meaning of a CUDA failure and its remedy; None for any other exception."""
    name = type(error).__name__
    text = " ".join(str(error).split())
    if name == "OutOfMemoryError":
        return f"the GPU's memory is full ({text}); use a shorter prompt, a lower --keep-ratio or smaller models"
    if name not in ("CUDARuntimeError", "CUDADriverError", "NVRTCError"):
        return None
    if "InsufficientDriver" in text:
        return "the NVIDIA driver is missing or too old for this CuPy; install a newer one, or the extra cuda12"
    if "NoDevice" in text or "NO_DEVICE" in text:
        return "no CUDA device is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if "MemoryAllocation" in text or "OUT_OF_MEMORY" in text:
        return f"the GPU's memory is full ({text}); close other programs that use the GPU"
    return f"CUDA failed: {text}; run again with SP_KERNEL_DEBUG=1 to see in which kernel"
