"""Check if this machine can run the kernels; every finding that is not good comes with a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sp.errors import DeviceError
from sp.folders import cache_folder
from sp.kernels import nvml, nvrtc
from sp.kernels.device import (
    current_device,
    device_count,
    device_errors,
    device_name,
    import_cupy,
    multiprocessors,
    nccl_version,
    reach_each_other,
    require_device,
)
from sp.kernels.path import native_path
from sp.kernels.specs.selftest import HOPPER, PRODUCT, SCALARS
from sp.kernels.tensor_map import tensor_map
from sp.quant import FORMATS, kernel_formats
from sp.quant.packing import TILE
from sp.quant.repack import device_format


def run_selftest() -> Iterator[str]:
    """Yield the name of each part that passed; DeviceError at the first that did not."""
    with device_errors():
        _scalars()
        yield "launch"
        _product()
        yield "mma.sync"
        if native_path() == "sm_90a":
            _hopper()
            yield "TMA and wgmma"


def _scalars() -> None:
    cupy = import_cupy()
    out = cupy.zeros(6, cupy.uint64)
    SCALARS.launch((1,), out, -7, -(2**40), 2**32 - 1, 2**64 - 1, 1.5, None)
    want = [2**64 - 7, 2**64 - 2**40, 2**32 - 1, 2**64 - 1, 0x3FC00000, 1]
    if out.get().tolist() != want:
        raise DeviceError(f"arguments of a kernel arrive as {out.get().tolist()}, not {want}")


def _product() -> None:
    cupy = import_cupy()
    a, b = _small_integers((16, 16), 1), _small_integers((8, 16), 2)
    y = cupy.empty((16, 8), cupy.float32)
    PRODUCT.launch((1,), _bf16(a), _bf16(b), y, 16, defines={"F16": 0, "TRANS": 0})
    _compare("mma.sync", y.get(), a @ b.T)


def _hopper() -> None:
    cupy = import_cupy()
    a, b = _small_integers((100, 320), 3), _small_integers((8, 320), 4)
    a_device, b_device, copy = _bf16(a), _bf16(b), cupy.zeros((64, 64), cupy.uint16)
    raw, raw_copy = cupy.arange(1024, dtype=cupy.uint8), cupy.zeros(1024, cupy.uint8)
    y = cupy.empty((64, 8), cupy.float32)
    maps = (
        tensor_map(a_device, (320, 100), (640,), (64, 64)),
        tensor_map(b_device, (320, 8), (640,), (64, 8)),
        tensor_map(copy, (64, 64), (128,), (64, 64)),
    )
    HOPPER.launch((1,), *maps, raw, raw_copy, y, 48, 5)
    tile = np.zeros((64, 320), np.float32)
    tile[:52] = a[48:]
    _compare("wgmma", y.get(), tile @ b.T)
    _compare("a tensor copy", copy.get(), _bf16(tile[:, -64:].copy()).get())
    _compare("a bulk copy", raw_copy.get(), raw.get())


def _small_integers(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Return values whose products and sums are exact in every precision used."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def _bf16(array: np.ndarray) -> Any:
    """Copy small integers to the device as bf16."""
    return import_cupy().asarray((array.view(np.uint32) >> 16).astype(np.uint16))


def _compare(operation: str, got: np.ndarray, want: np.ndarray) -> None:
    wrong = int((got != want).sum())
    if wrong:
        raise DeviceError(f"{operation} gives {wrong} wrong values of {want.size} on this GPU")


class Finding(NamedTuple):
    """One line of the report; `state` is ``ok``, ``warn`` or ``fail``."""

    name: str
    state: str
    detail: str
    mend: str = ""


def examine() -> Iterator[Finding]:
    """Yield findings in the order of their dependencies; the device parts stop at the first failure."""
    yield from _wheels()
    for part in (_cupy, _compiler, _headers, _cache, _driver, _gpu, _gpus, _memory, _selftest, _formats):
        finding = _guarded(part)
        yield finding
        if finding.state == "fail" and part in (_cupy, _driver, _gpu):
            return
    yield from _repacked()


def usable(findings: list[Finding]) -> bool:
    """Return True if nothing failed."""
    return all(finding.state != "fail" for finding in findings)


def _guarded(part: Callable[[], Finding]) -> Finding:
    try:
        return part()
    except DeviceError as error:
        problem, _, mend = str(error).partition("; ")
        return Finding(part.__name__.strip("_"), "fail", problem, mend)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _wheels() -> Iterator[Finding]:
    wheels = {name: _installed(name) for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy")}
    names = [f"{name} {text}" for name, text in wheels.items() if text]
    if len(names) > 1:
        remove = " ".join(name for name, text in wheels.items() if text)
        mend = f"pip uninstall -y {remove}, then install one of sp-prefill[cuda12], sp-prefill[cuda13]"
        yield Finding("wheels", "fail", f"{' and '.join(names)} overwrite each other", mend)
    elif names:
        yield Finding("wheels", "ok", names[0])
    else:
        mend = "pip install 'sp-prefill[cuda13]' or 'sp-prefill[cuda12]'"
        yield Finding("wheels", "warn", "no CuPy wheel is installed", mend)


def _cupy() -> Finding:
    return Finding("cupy", "ok", f"CuPy {import_cupy().__version__}")


def _built_for() -> int:
    """Return the CUDA major version for which the CuPy wheel was built."""
    return int(import_cupy().cuda.runtime.runtimeGetVersion()) // 1000


def _compiler() -> Finding:
    major, minor = nvrtc.version()
    detail = f"NVRTC {major}.{minor}"
    if major != _built_for():
        mend = f"pip install 'nvidia-cuda-nvrtc=={_built_for()}.*', or the other of the extras cuda12, cuda13"
        return Finding("compiler", "fail", f"{detail}, but CuPy is built for CUDA {_built_for()}", mend)
    return Finding("compiler", "ok", detail)


def _headers() -> Finding:
    folder = Path(nvrtc.header_folder())
    header = folder / "cuda_runtime_api.h"
    text = header.read_text(errors="replace") if header.exists() else ""
    named = [line.split()[-1] for line in text.splitlines() if line.startswith("#define CUDART_VERSION")]
    major = int(named[0]) // 1000 if named and named[0].isdigit() else None
    if major not in (None, _built_for()):
        mend = f"pip install 'nvidia-cuda-runtime=={_built_for()}.*' (nvidia-cuda-runtime-cu12 for CUDA 12)"
        return Finding("headers", "fail", f"{folder} is of CUDA {major}, CuPy of CUDA {_built_for()}", mend)
    return Finding("headers", "ok", str(folder))


def _cache() -> Finding:
    folder = cache_folder() / "kernels"
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        return Finding("cache", "fail", f"cannot write {folder}", "set SP_CACHE_DIR to a writable folder")
    sizes = [file.stat().st_size for file in folder.glob("*.cubin")]
    return Finding("cache", "ok", f"{folder}: {len(sizes)} kernels, {sum(sizes) / 1e6:.1f} MB")


def _driver() -> Finding:
    with device_errors():
        supported = int(import_cupy().cuda.runtime.driverGetVersion())
    if supported == 0:
        mend = "install one: https://www.nvidia.com/drivers; without a GPU `sp run` still works on the CPU"
        return Finding("driver", "fail", "no NVIDIA driver", mend)
    detail = f"{nvml.driver_version() or 'version unknown'}, CUDA {supported // 1000}.{supported % 1000 // 10}"
    if supported // 1000 < _built_for():
        mend = "install a newer driver, or sp-prefill[cuda12] in place of sp-prefill[cuda13]"
        return Finding("driver", "fail", f"{detail} is too old for a CuPy of CUDA {_built_for()}", mend)
    return Finding("driver", "ok", detail)


def _gpu() -> Finding:
    major, minor = require_device()
    device = current_device()
    name, cores = device_name(device), multiprocessors(device)
    return Finding("gpu", "ok", f"{name}, sm_{major}{minor}, {cores} multiprocessors, {native_path()} kernels")


def _gpus() -> Finding:
    """Report the number of GPUs, and if they can prefill a prompt together."""
    count, nccl = device_count(), nccl_version()
    detail = ", ".join(device_name(device) for device in range(count))
    if count > 1 and not nccl:
        mend = f"pip install nvidia-nccl-cu{_built_for()}; without it each prompt uses one GPU only"
        return Finding("gpus", "warn", f"{count}: {detail}; no NCCL", mend)
    library = f"; NCCL {nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}" if nccl else ""
    reach = ""
    if count > 1:
        reach = "; peer access between all" if reach_each_other(range(count)) else "; no peer access, NCCL only"
    return Finding("gpus", "ok", f"{count}: {detail}{library}{reach}")


def _memory() -> Finding:
    with device_errors():
        free, total = import_cupy().cuda.runtime.memGetInfo()
    detail = f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f}"
    if free < total // 2:
        return Finding("memory", "warn", detail, "other programs use the rest: see nvidia-smi")
    return Finding("memory", "ok", detail)


def _selftest() -> Finding:
    return Finding("selftest", "ok", ", ".join(run_selftest()))


def _formats() -> Finding:
    names = ", ".join(fmt.name for fmt in kernel_formats())
    return Finding(
        "formats", "ok", f"kernels read {names}; others are re-packed at load (sp inspect FILE shows the bytes)"
    )


def _repacked() -> Iterator[Finding]:
    """Yield one line for each format that others are re-packed to."""
    sources: dict[str, list[str]] = {}
    for fmt in FORMATS.values():
        target_format = device_format(fmt, TILE)
        if target_format is not fmt:
            sources.setdefault(target_format.name, []).append(fmt.name)
    for target, names in sources.items():
        yield Finding("re-packed", "ok", f"{', '.join(names)} -> {target}")
