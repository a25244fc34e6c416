"""Load a function from a source and its defines: flatten, compile or find the cubin on disk, load once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from sp.errors import DeviceError
from sp.folders import cache_folder
from sp.kernels import nvrtc
from sp.kernels.device import device_errors, import_cupy, require_device
from sp.kernels.flatten import flatten
from sp.kernels.launch_replay import Kernel
from sp.kernels.nvrtc import Define
from sp.kernels.setting import setting

_before_loading: ContextVar[Callable[[], None] | None] = ContextVar("before_loading", default=None)


def before_loading(wait: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `wait` before each first load of a kernel inside the block: a load may wait for all work of the device."""
    return setting(_before_loading, wait)


def device_arch(arches: str, capability: tuple[int, int]) -> str:
    """Return the ``sm_`` number for which a kernel for `arches` (``"80+"`` or ``"90a"``) is compiled on this device."""
    major, minor = capability
    if arches == "90a":
        if capability != (9, 0):
            raise DeviceError(f"needs compute capability 9.0, this GPU has {major}.{minor}; use the portable path")
        return "90a"
    return f"{major}{minor}"


def device_arches(capability: tuple[int, int]) -> list[str]:
    """Return every ``sm_`` number for which kernels are compiled on this device."""
    major, minor = capability
    return [f"{major}{minor}", *(["90a"] if capability == (9, 0) else [])]


def cubin_path(source: str, options: tuple[str, ...]) -> Path:
    """Return the path of the cached cubin; its name is a hash of every input of the compilation."""
    key = "\0".join((*map(str, nvrtc.version()), *options, flatten(source)))
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache_folder() / "kernels" / f"{Path(source).stem}-{digest}.cubin"


def build(source: str, options: tuple[str, ...]) -> Path:
    """Return the path of the cubin, after compiling it if it is not in the cache."""
    path = cubin_path(source, options)
    if not path.exists():
        keep(path, nvrtc.compile_cubin(flatten(source), source, options).cubin)
    return path


def compile_log(source: str, options: tuple[str, ...]) -> str:
    """Return the messages of the compiler and ptxas about a source; cached as well."""
    path = cubin_path(source, options).with_suffix(".log")
    if not path.exists():
        keep(path, nvrtc.compile_cubin(flatten(source), source, options, report=True).log.encode())
    return path.read_text(encoding="utf-8")


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache, whole or not at all, even with several processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError as error:
        raise DeviceError(
            f"cannot write compiled kernels to {path.parent}: {error.strerror}; set SP_CACHE_DIR to another folder"
        ) from None


@cache
def _module(path: str, device: int) -> Any:
    return import_cupy().RawModule(path=path)


def load(source: str, entry: str, defines: Mapping[str, Define], arches: str, shared: int, device: int) -> Kernel:
    """Load a kernel for the device, ready to launch with `shared` bytes of dynamic shared memory."""
    try:
        options = nvrtc.compile_options(defines, device_arch(arches, require_device()))
    except DeviceError as error:
        raise DeviceError(f"kernel {entry}: {error}") from None
    path, wait = build(source, options), _before_loading.get()
    if wait is not None:
        wait()
    try:
        with device_errors():
            function = _module(str(path), device).get_function(entry)
            if shared:  # more than 48 KiB must be requested explicitly
                function.max_dynamic_shared_size_bytes = shared
            return Kernel(function.kernel)  # a RawKernel looks up its function at every launch
    except DeviceError as error:
        raise DeviceError(f"kernel {entry} with {shared} bytes of shared memory cannot be loaded: {error}") from None
