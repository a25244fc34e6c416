"""The search for loud channels on the host: it finds what the twin finds, and leaves zeros for the next one."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from host_code import aligned, library, pointer, without_ptx
from pairwise import pairwise

from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul.gemm_bytes import LOUD
from sp.ops.byte_rows.loud import loudest

GIVEN = """
inline float __log2f(float v) { return std::log2(v); }
inline void __threadfence() {}
"""
INPUTS = """
extern "C" void run(const u16* x, u32* peaks, u32* done, u32* count, u32* channels, u32* mask, i32 tokens, i32 stride,
                    i32 each, int missing) {
    const unsigned down = (tokens + each - 1) / each, across = (COLS + 1023) / 1024;
    gridDim = {across, down + missing, 1};
    for (blockIdx.y = 0; blockIdx.y < down; ++blockIdx.y)
        run_blocks(across, 1024, [=] { loud_inputs(x, peaks, done, count, channels, mask, tokens, stride, each); });
}
"""


@cache
def compiled(width: int) -> ctypes.CDLL:
    source = "".join(without_ptx(flatten("loud_inputs.cu")))
    text = re.sub(r"#pragma (once|unroll.*)|^#line.*$", "", source, flags=re.MULTILINE)
    text = re.sub(r"\bMOST\b", "MOST_LOUD", text)  # a name of host_block.h
    return library("host_block.h", GIVEN + text + INPUTS, {"COLS": width}, Path(mkdtemp()), "-std=c++20", "-O1")


@pairwise(width=[256, 1280, 2080], each=[16, 64], loud=[0, 3, 100], stride=[1, 3])
def test_outlier_channels_are_selected_and_peaks_are_cleared(width: int, each: int, loud: int, stride: int) -> None:
    tokens, rng = 69 * stride + 1, np.random.default_rng([width, loud])
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    x[:, rng.choice(width, loud, replace=False)] *= rng.uniform(50, 1000, loud).astype(np.float32)
    bits = aligned((x.view(np.uint32) >> 16).astype(np.uint16))
    x = (bits.astype(np.uint32) << 16).view(np.float32)
    done = aligned(np.zeros(1, np.uint32))
    largest, searched = np.abs(x[::stride]).max(axis=0), -(-tokens // stride)
    want = loudest(largest)
    # One row of blocks less than there are: none is the last, so that peaks are found and not yet looked at.
    peaks, untouched = aligned(np.zeros(width, np.uint32)), [aligned(np.full(LOUD, 9999, np.uint32)) for _ in range(3)]
    run = compiled(width).run
    run(*map(pointer, (bits, peaks, done, *untouched)), searched, stride, each, 1)
    np.testing.assert_array_equal(peaks.view(np.float32), largest)
    assert all((one == 9999).all() for one in untouched)
    assert done[0] == -(-width // 1024) * -(-searched // each)
    done[0] = 0
    peaks[:] = 0
    count, channels = aligned(np.array([9999], np.uint32)), aligned(np.full(LOUD, 9999, np.uint32))
    mask = aligned(np.full(width // 32, 0xFFFFFFFF, np.uint32))
    run(*map(pointer, (bits, peaks, done, count, channels, mask)), searched, stride, each, 0)
    assert count[0] == len(want) >= min(loud, LOUD)
    assert channels[: len(want)].tolist() == want.tolist()
    if len(want):
        assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() == want.tolist()
    assert not peaks.any(), "zeros for the next one"
    assert not done.any()
