"""NVRTC with one set of options for running, building ahead and the GPU-less check: text in, cubin and log out.

The cubin is made here rather than by ``cupy.RawModule(code=...)``, which derives ``-arch`` from the device (so never
``sm_90a``), appends options of its own and adds include folders. Needs no GPU and no driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels.device import INSTALL, debugging, import_cupy

Define = int | float | str


class Compiled(NamedTuple):
    """A cubin and what the compiler said about it."""

    cubin: bytes
    log: str


@cache
def version() -> tuple[int, int]:
    """Version of the NVRTC library, or DeviceError."""
    cupy = import_cupy()
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        raise DeviceError(f"the CUDA compiler (NVRTC) cannot be loaded: {error}; {INSTALL}") from None
    return int(major), int(minor)


@cache
def header_folder() -> str:
    """Folder of ``cuda_fp16.h`` and its kin, or DeviceError."""
    import_cupy()
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    if folder is None:
        raise DeviceError(f"the CUDA headers (cuda_fp16.h) are missing; {INSTALL}")
    return str(folder)


def compile_options(defines: Mapping[str, Define], arch: str) -> tuple[str, ...]:
    """Options that, with the text and the compiler's version, decide a cubin. ``-ftz=true`` as CuPy compiles its own
    kernels: float32 denormals count as zero on the device. Without ``-default-device`` NVRTC 13.0 takes generic lambdas
    for host code."""
    named = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    debug = ["-DSP_DEBUG=1"] if debugging() else []
    return (f"-arch=sm_{arch}", "-std=c++17", "-lineinfo", "-ftz=true", "-default-device", *debug, *named)


def compile_cubin(text: str, name: str, options: tuple[str, ...], report: bool = False) -> Compiled:
    """Compile a flattened source. `text`: from `sp.kernels.flatten.flatten`; `name`: file name for messages; `options`:
    from `compile_options`; `report`: ask ptxas for registers, spills and shared memory in the log. DeviceError with the
    compiler's log."""
    if version() < (12, 0):
        raise DeviceError(f"NVRTC {version()[0]}.{version()[1]} is too old, 12.0 is needed; {INSTALL}")
    if options[0].endswith("a") and version() < (12, 1):
        raise DeviceError(f"NVRTC {version()[0]}.{version()[1]} cannot compile for sm_90a; {INSTALL}")
    nvrtc = import_cupy().cuda.nvrtc
    arguments = [*options, f"-I{header_folder()}", *(["--ptxas-options=-v"] if report else [])]
    program = nvrtc.createProgram(text, name, [], [])
    try:
        nvrtc.compileProgram(program, arguments)
        return Compiled(nvrtc.getCUBIN(program), _log(nvrtc, program))
    except nvrtc.NVRTCError as error:
        log = _log(nvrtc, program)
        raise DeviceError(f"{name} does not compile ({' '.join(options)}): {error}\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    return str(nvrtc.getProgramLog(program)).strip("\0\n ")
