"""NVRTC with one set of options for launching, compiling ahead and the check without a GPU: text in, cubin and log out.

The cubin is compiled here rather than by ``cupy.RawModule(code=...)``, which derives ``-arch`` from the device (so
never ``sm_90a``), appends options of its own and adds include folders. It needs no GPU and no driver."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels.device import INSTALL, debugging, import_cupy

Define = int | float | str


class CompiledKernel(NamedTuple):
    """A cubin and the compiler's log."""

    cubin: bytes
    log: str


@cache
def version() -> tuple[int, int]:
    """Return the version of the NVRTC library; DeviceError if it cannot be loaded."""
    cupy = import_cupy()
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        raise DeviceError(f"the CUDA compiler (NVRTC) cannot be loaded: {error}; {INSTALL}") from None
    return int(major), int(minor)


@cache
def header_folder() -> str:
    """Return the folder of ``cuda_fp16.h`` and related headers; DeviceError if they are missing."""
    import_cupy()
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    if folder is None:
        raise DeviceError(f"the CUDA headers (cuda_fp16.h) are missing; {INSTALL}")
    return str(folder)


def compile_options(defines: Mapping[str, Define], arch: str) -> tuple[str, ...]:
    """Return the options that, with the text and the compiler's version, determine a cubin. ``-ftz=true`` is CuPy's
    setting for its own kernels: float32 denormals count as zero on the device. Without ``-default-device`` NVRTC 13.0
    treats generic lambdas as host code."""
    macros = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    debug = ["-DSP_DEBUG=1"] if debugging() else []
    return (f"-arch=sm_{arch}", "-std=c++17", "-lineinfo", "-ftz=true", "-default-device", *debug, *macros)


def compile_cubin(text: str, name: str, options: tuple[str, ...], report: bool = False) -> CompiledKernel:
    """Compile a flattened source. `text`: from `sp.kernels.flatten.flatten`; `name`: file name for messages; `options`:
    from `compile_options`; `report`: ask ptxas for registers, spills and shared memory in the log. DeviceError with the
    compiler's log if it fails."""
    if version() < (12, 0):
        raise DeviceError(f"NVRTC {version()[0]}.{version()[1]} is too old, 12.0 is needed; {INSTALL}")
    if options[0].endswith("a") and version() < (12, 1):
        raise DeviceError(f"NVRTC {version()[0]}.{version()[1]} cannot compile for sm_90a; {INSTALL}")
    nvrtc = import_cupy().cuda.nvrtc
    arguments = [*options, f"-I{header_folder()}", *(["--ptxas-options=-v"] if report else [])]
    program = nvrtc.createProgram(text, name, [], [])
    try:
        nvrtc.compileProgram(program, arguments)
        return CompiledKernel(_whole(nvrtc.getCUBIN(program)), _log(nvrtc, program))
    except nvrtc.NVRTCError as error:
        log = _log(nvrtc, program)
        raise DeviceError(f"{name} does not compile ({' '.join(options)}): {error}\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    """Return a cubin with its last byte, which CuPy drops as if it were the end of a text. The driver does not need it,
    but nvdisasm and cuobjdump read no ELF file whose headers are not all there."""
    programs, sections = struct.unpack_from("<QQ", cubin, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", cubin, 54)
    return cubin.ljust(max(programs + program_size * program_count, sections + section_size * section_count), b"\0")


def _log(nvrtc: Any, program: Any) -> str:
    return str(nvrtc.getProgramLog(program)).strip("\0\n ")
