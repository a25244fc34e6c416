"""Find machine code that writes a register from which tensor cores may still read an operand.

    python experiments/operands_in_flight.py attention_bytes.cu attention_sm90.cu    # needs no GPU

A product of a warpgroup (wgmma) that takes its left side from registers reads them until a wait for it (PTX ISA
9.7.16.5). Of operands that are made between two waits the compiler keeps the registers. Of others, made earlier and
copied, it gave them away before the wait: `attention_bytes.cu` was wrong now and then for that. So every variant of the
sources is compiled for sm_90a, and its machine code searched from every such product along all ways on to the wait that
ends it. Ways that no run takes are walked too: what is printed of `gemm_sm90.cu`, whose wait is left out in the first
round of a loop, is no fault. Exit status 1 if anything is printed.

nvdisasm is of a CUDA toolkit or of the package nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sp.errors import DeviceError
from sp.kernels import nvrtc
from sp.kernels.flatten import flatten
from sp.kernels.manifest import kernels
from sp.kernels.tools.check import plan, row_name

PRODUCT = re.compile(r"[HQI]GMMA\S* R\d+, R(\d+), gdesc")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
TARGET = re.compile(r"(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*) +R(\d+)\b")
STORES = ("ST", "RED", "SYNCS", "BAR", "ATOM", "UTMA")
OPERAND = 4
"""Registers of the left side of one product."""


class Instruction(NamedTuple):
    """One line of a listing, and where it may jump to."""

    address: str
    text: str
    jump: int | None


def disassembler() -> str | None:
    """The program nvdisasm: of the package nvidia-cuda-nvdisasm, or of a toolkit; None without either."""
    try:
        beside = Path(nvrtc.header_folder()).parent / "bin" / "nvdisasm"
    except DeviceError:
        return shutil.which("nvdisasm")
    return str(beside) if beside.exists() else shutil.which("nvdisasm")


def listing(cubin: bytes, program: str) -> str:
    """What `program` makes of a cubin; DeviceError where it cannot."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin + b"\0")  # CuPy hands cubins out without their last byte
        file.flush()
        done = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"{program}: {done.stderr.strip()}")
    return done.stdout


def overwritten(text: str) -> list[str]:
    """Complaints: a product, and an instruction that writes to what it may still read.

    Examples
    --------
    >>> text = '''
    ... /*0000*/ QGMMA.64x128x32.F32.E4M3.E4M3 R24, R152, gdesc[UR8], R24, gsb0 ;
    ... /*0010*/ MOV R153, R5 ;
    ... /*0020*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
    ... /*0030*/ MOV R154, R5 ;
    ... '''
    >>> overwritten(text)
    ['QGMMA.64x128x32.F32.E4M3.E4M3 R24, R152 at 0000 may read what MOV R153, R5 at 0010 writes']
    """
    code, found = _parsed(text), []
    for at, one in enumerate(code):
        if product := PRODUCT.search(one.text):
            first = int(product[1])
            for wrong in _in_flight(code, at):
                hit = _written(wrong.text)
                if hit and hit.start < first + OPERAND and hit.stop > first:
                    name = one.text.partition(", gdesc")[0]
                    found.append(f"{name} at {one.address} may read what {wrong.text} at {wrong.address} writes")
                    break
    return found


def _parsed(text: str) -> list[Instruction]:
    lines, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(lines)
        elif code := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            lines.append((code[1], re.sub(r"\s+", " ", code[2])))
    jumps = [re.search(r"BRA.*`\((\.L_\w+)\)", text) for _, text in lines]
    return [Instruction(*line, labels.get(jump[1]) if jump else None) for line, jump in zip(lines, jumps, strict=True)]


def _in_flight(code: list[Instruction], at: int) -> Iterator[Instruction]:
    """What may run between a product and the wait that ends it; `newer` groups of products were begun since."""
    closed = "gsb0" in code[at].text
    seen: set[tuple[int, bool, int]] = set()
    todo = [(at + 1, closed, 0)]
    while todo:
        place, closed, newer = todo.pop()
        while place < len(code) and (place, closed, newer) not in seen:
            seen.add((place, closed, newer))
            one = code[place]
            wait = WAIT.search(one.text)
            if (wait and closed and newer >= int(wait[1], 16)) or one.text.startswith("EXIT"):
                break
            if "GMMA" in one.text and "gsb0" in one.text:
                closed, newer = True, min(newer + closed, OPERAND)
            yield one
            if one.jump is not None:
                todo.append((one.jump, closed, newer))
                if one.text.startswith("BRA"):
                    break
            place += 1


def _written(text: str) -> range | None:
    """The registers that an instruction writes, but for sums of products."""
    target = TARGET.match(text)
    if target is None or target[1].startswith(STORES) or "GMMA" in target[1]:
        return None
    name, first = target[1], int(target[2])
    wide = 1
    if ".128" in name or name.startswith("HMMA") or name.endswith(".4"):
        wide = 4
    elif ".64" in name or "WIDE" in name or name.endswith(".2") or name == "CS2R":
        wide = 2
    return range(first, first + wide)


def main() -> int:
    """Compile, search, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="names of .cu files")
    sources, program, faults = parser.parse_args().sources, disassembler(), 0
    if program is None:
        parser.error("nvdisasm is not there; pip install nvidia-cuda-nvdisasm")
    jobs = [job for job in plan(kernels().values(), ("90a",)) if job.source in sources]
    if missing := set(sources) - {job.source for job in jobs}:
        parser.error(f"no kernels for sm_90a in {', '.join(sorted(missing))}")
    for job in jobs:
        options = nvrtc.compile_options(dict(job.defines), job.arch)
        compiled = nvrtc.compile_cubin(flatten(job.source), job.source, options)
        found = overwritten(listing(compiled.cubin, program))
        print(f"{row_name(job.source, job.defines)}: {len(found)} found")
        print("".join(f"  {line}\n" for line in found), end="")
        faults += len(found)
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
