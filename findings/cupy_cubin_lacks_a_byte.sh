#!/usr/bin/env bash
# A cubin that CuPy returns from NVRTC lacks its last byte, and NVIDIA's disassembler does not read it.
#
# Versions: cupy-cuda13x 14.2.0; nvidia-cuda-nvrtc, nvidia-cuda-runtime and nvidia-cuda-nvdisasm 13.5.37. No GPU and no driver.
# Behaviour: `cupy.cuda.nvrtc.getCUBIN` ends its result one byte before the size that `nvrtcGetCUBINSize` names, as is right
#   for PTX, a text with a zero at its end. A cubin is an ELF file whose last bytes are those of its program headers. The
#   disassembler calls what is left an invalid ELF file. With the byte, which is zero, it lists the kernel's instructions.
# Output seen: 1 byte less than NVRTC has; nvdisasm fails; with a zero byte behind it, equal to NVRTC's own and disassembled.
# Why it matters: the driver loads such a file all the same, so kernels run and only those who look at their instructions
#   meet the error, which seems to be one of versions. Add the byte before a cubin is stored for nvdisasm, cuobjdump or a profiler.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cupy-cuda13x==14.2.0 nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-runtime==13.5.37 \
    nvidia-cuda-nvdisasm==13.5.37
FOLDER="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import ctypes
import os
import struct
import subprocess
import sysconfig
from pathlib import Path

from cupy.cuda import nvrtc

folder, packages = Path(os.environ["FOLDER"]), Path(sysconfig.get_path("purelib"))
program = nvrtc.createProgram('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice.cu", [], [])
nvrtc.compileProgram(program, ["-arch=sm_90"])
given = nvrtc.getCUBIN(program)

own = ctypes.CDLL(str(next(packages.rglob("libnvrtc.so.13"))))
size = ctypes.c_size_t()
assert own.nvrtcGetCUBINSize(ctypes.c_void_p(program), ctypes.byref(size)) == 0
whole = ctypes.create_string_buffer(size.value)
assert own.nvrtcGetCUBIN(ctypes.c_void_p(program), whole) == 0
print(f"NVRTC {'.'.join(map(str, nvrtc.getVersion()))} has {size.value} bytes, CuPy returns {len(given)}")

start, (each, count) = struct.unpack_from("<Q", given, 32)[0], struct.unpack_from("<HH", given, 54)
print(f"program headers end at byte {start + each * count}")


def disassembled(name: str, cubin: bytes) -> str | None:
    """The kernel's instructions, or None if nvdisasm refuses the file."""
    path = folder / name
    path.write_bytes(cubin)
    tool = next(packages.rglob("bin/nvdisasm"))
    tool.chmod(0o755)
    done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=False)
    print(f"{name}: {'disassembled' if done.returncode == 0 else done.stderr.strip().replace(str(folder), '')}")
    return done.stdout if done.returncode == 0 else None


assert len(given) == size.value - 1 == start + each * count - 1
assert disassembled("as returned", given) is None
assert given + b"\0" == whole.raw
listing = disassembled("with a zero byte", given + b"\0")
assert listing is not None and ("FMUL" in listing or "FADD" in listing)
PYTHON
