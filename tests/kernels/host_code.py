"""Device code of a kernel compiled for the host: its functions as they are, those made of PTX replaced."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from sp.kernels.flatten import flatten

HERE = Path(__file__).parent
FUNCTION = re.compile(r"(?:template <[^\n]*>\n)?(?<!#define )SP_DEVICE [^;{]*?\b(\w+)\([^;{]*\)(?: const)? \{")
CONVERSION = re.compile(r'asm\("\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %2; cvt\.f32\.f16.*?\);', re.DOTALL)
"""Of two f16 in `a_fragment`."""
PTX = re.compile(r'asm(?: volatile)?\("([^"]*)"([^;]*)\);')
OPERAND = re.compile(r'"=?[rln]"\((.*?)\)(?=\s*(?:[,:]|$))', re.DOTALL)
CALLS = {
    "ld.shared.b32 %0, [%1];": "{0} = word_at({1});",
    "ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];": "words_at({0}, {1}, {2}, {3}, {4});",
    "st.shared.v4.b32 [%0], {%1,%2,%3,%4};": "put_words({0}, {1}, {2}, {3}, {4});",
    "cp.async.ca.shared.global [%0], [%1], %2, %3;": "copy_some({0}, {1}, {2}, {3});",
    "cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;": "copy_some({0}, {1}, {2}, {3});",
    "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;": "cp_async_16({0}, {1}, {2});",
    "mov.b32 %0, 0x64006400;": "{0} = 0x64006400;",
    "mov.b32 %0, %1;": "{0} = {1};",
}
"""Statements of PTX inside functions that do more, and what host_pairs.h has for them."""
GIVEN_HERE = ("byte_products.cuh", "wgmma_bytes.cuh", "wgmma_f16.cuh")
"""Headers of nothing but PTX."""


def compiled(source: str, driver: str, defines: Mapping[str, int], folder: Path, *, whole: bool = False) -> ctypes.CDLL:
    """A library of the functions that lie before the entry of `source`, and of `driver`; skips without a compiler.

    `whole`: with the entry, a kernel of which a block is one warp, or HOST_LANES of `defines`.
    """
    text = flatten(source)
    text = CONVERSION.sub("low = low_f16(word_of(q.low[s], j)), high = high_f16(word_of(q.low[s], j));", text)
    text = with_calls(text)
    end = len(text) if whole else text.index('extern "C" __global__')
    text = "".join(without_ptx(text[:end]))
    types, rest = text.split("#define SP_DEVICE", 1)
    line, rest = rest.split("\n", 1)
    text = f"{types}#define SP_DEVICE{line}\n{(HERE / 'host_asm.h').read_text(encoding='utf-8')}{rest}"
    text = re.sub(r"extern __shared__ __align__\((\d+)\) u8 shared\[\];", r"alignas(\1) u8 shared[1 << 20];", text)
    text = re.sub(r"__shared__ (?:__align__|alignas)\((\d+)\) ", r"alignas(\1) static ", text)
    text = re.sub(r"#pragma (once|unroll.*)|^#line.*$|^SP_DEVICE u32 shared_address.*$", "", text, flags=re.MULTILINE)
    return library("host_warp.h", text + driver, defines, folder, "-std=c++17", "-O0")


def hosted(source: str, driver: str, folder: Path, before: str = "", **defines: int) -> ctypes.CDLL:
    """The kernels of `source` and `driver` for the host, on blocks of several warps. `before`: functions in place of
    those made of PTX that no header here has."""
    parts = re.split(r"^#line \d+ \"(.*)\"$", flatten(source), flags=re.MULTILINE)
    kept = [text for name, text in zip(parts[1::2], parts[2::2], strict=True) if Path(name).name not in GIVEN_HERE]
    text = "".join(without_ptx(with_calls("".join(kept))))
    text = text.replace("extern __shared__ __align__(1024) u8 memory[];", "")
    text = re.sub(r"extern __shared__ __align__\(\d+\) u8 shared\[\];", "static u8* const shared = memory;", text)
    text = re.sub(r"__shared__ (?:__align__|alignas)\((\d+)\) ", r"alignas(\1) static ", text)
    text = re.sub(r"#pragma (once|unroll.*)", "", text)
    folder.mkdir()
    return library("host_hopper.h", before + text + driver, defines, folder, "-std=c++20", "-O1")


def library(
    header: str, text: str, defines: Mapping[str, int], folder: Path, standard: str, *options: str
) -> ctypes.CDLL:
    """Compile a header of this folder and `text` with g++; skips without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile device code for the host")
    file = folder / "host.cpp"
    file.write_text((HERE / header).read_text(encoding="utf-8") + text, encoding="utf-8")
    # Without unique symbols, or statics of inline functions would be those of the first library in the process.
    given = (standard, *options, "-w", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique")
    named = [f"-D{name}={int(value)}" for name, value in defines.items()]
    ahead = ("-include", Path(read_ahead(compiler, header, given).name) / "std.h")
    _run(compiler, *given, f"-I{HERE}", *ahead, "-shared", *named, file, "-o", folder / "host.so")
    return ctypes.CDLL(str(folder / "host.so"))


@cache
def read_ahead(compiler: str, header: str, options: tuple[str, ...]) -> TemporaryDirectory[str]:
    """A folder with `std.h`, which g++ finds read already: of a small library that is most of the work."""
    folder, text = TemporaryDirectory(), (HERE / header).read_text(encoding="utf-8")
    for inner in re.findall(r'^#include "(.*)"$', text, re.MULTILINE):
        text += (HERE / inner).read_text(encoding="utf-8")
    place = Path(folder.name) / "std.h"
    place.write_text("\n".join(re.findall(r"^#include <.*>$", text, re.MULTILINE)) + "\n", encoding="utf-8")
    _run(compiler, *options, "-x", "c++-header", place, "-o", place.with_suffix(".h.gch"))
    return folder


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def tensor_map(array: np.ndarray, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """A map as host_hopper.h reads it."""
    words = np.zeros(16, np.uint64)
    ones = (1,) * (4 - len(dims))
    words[:13] = (array.ctypes.data, array.itemsize, *dims, *ones, *strides, *(0 for _ in ones), *box, *ones)
    return aligned(words)


def with_calls(text: str) -> str:
    """`text` with `CALLS` in place of statements of PTX."""

    def call(statement: re.Match[str]) -> str:
        made = CALLS.get(statement[1])
        return statement[0] if made is None else made.format(*OPERAND.findall(statement[2]))

    return PTX.sub(call, text)


def without_ptx(text: str) -> Iterator[str]:
    """`text` but for its functions that hold PTX; operators stay, for those that are not called."""
    at = 0
    for match in FUNCTION.finditer(text):
        if match.start() < at:
            continue
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield text[at : match.start()]
        at = end
        if match[1] == "operator" or "asm" not in text[match.start() : end]:
            yield text[match.start() : end]
    yield text[at:]


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes."""
    room = np.empty(values.nbytes + 64, np.uint8)
    at = -room.ctypes.data % 64
    copy = room[at : at + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def pointer(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
