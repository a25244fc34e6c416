"""Inputs rounded to bytes on the host, by any number of parts, against the NumPy twin."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.kernels.specs.matmul.gemm_bytes import GROUPED, LOUD
from sp.ops.byte_rows.rows import ByteKind, round_rows

DRIVER = """
struct Job {
    const u16* x;
    u8* codes;
    f32* scales;
    u16* loud;
    const u32 *count, *channels;
    const u16* mask;
    i32 tokens, stride;
};
static void thread_of(int lane, void* given) {
    const Job& j = *static_cast<Job*>(given);
    threadIdx.x = lane;
    round_inputs(j.x, j.codes, j.scales, j.loud, j.count, j.channels, j.mask, j.tokens, j.stride, 0);
}
extern "C" void run(const u16* x, u8* codes, f32* scales, u16* loud, const u32* count, const u32* channels,
                    const u16* mask, int tokens, int stride, int parts) {
    Job job = {x, codes, scales, loud, count, channels, mask, tokens, stride};
    gridDim = {unsigned(stride / 8), unsigned(parts), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_warp(thread_of, &job);
}
"""


@cache
def library(width: int) -> ctypes.CDLL:
    defines = {"COLS": width, "KIND": 0, "HOST_LANES": 256, "__CUDA_ARCH__": 800}
    return compiled("round_inputs.cu", DRIVER, defines, Path(mkdtemp()), whole=True)


def order() -> np.ndarray:
    """Return the input, of 64, in each byte, as round_weight.cu defines it."""
    c, s, h, e = np.indices((4, 4, 2, 2))
    places = np.empty(64, int)
    places[(16 * c + 4 * s + 2 * h + e).ravel()] = (16 * s + 8 * h + 2 * c + e).ravel()
    return places


@pytest.mark.parametrize("width", [256, 1280, 2048])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("channels", [[], [0, 255, 200]], ids=len)
def test_rows_are_those_of_the_twin(width: int, parts: int, channels: list[int]) -> None:
    tokens, stride = 11, 24
    x = np.random.default_rng(width).standard_normal((tokens, width)).astype(np.float32)
    x[3] = 0
    bits = aligned((x.view(np.uint32) >> 16).astype(np.uint16))
    x = (bits.astype(np.uint32) << 16).view(np.float32)
    mask = aligned(np.zeros(width // 16, np.uint16))
    for channel in channels:
        mask[channel // 16] |= np.uint16(1 << channel % 16)
    codes, loud = aligned(np.full((tokens, width), 0x55, np.uint8)), aligned(np.full((tokens, LOUD), 7, np.uint16))
    scales = aligned(np.full((width // GROUPED, stride), np.nan, np.float32))
    listed = sorted(channels)
    given = (
        aligned(np.array([len(listed)], np.uint32)),
        aligned(np.array([*listed, *[0] * (LOUD - len(listed))], np.uint32)),
    )
    library(width).run(*map(pointer, (bits, codes, scales, loud, *given, mask)), tokens, stride, parts)
    twin = round_rows(x, ByteKind.INT8, np.array(listed, int), True)
    actual = np.empty((tokens, width // 64, 64))
    actual[..., order()] = codes.view(np.int8).reshape(tokens, -1, 64)
    np.testing.assert_array_equal(actual.reshape(tokens, width), twin.codes)
    np.testing.assert_array_equal(scales[:, :tokens].T, twin.scales)
    assert not scales[:, tokens:].any()
    if not channels:
        assert (loud == 7).all()
        return
    np.testing.assert_array_equal((loud.astype(np.uint32) << 16).view(np.float32)[:, : len(listed)], twin.loud)
    assert not loud[:, len(listed) :].any()
