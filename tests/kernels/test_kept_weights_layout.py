"""Outlier columns gathered from rounded weights, on the host: equal to those of weights that are rounded again."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, compiled

from sp.kernels.specs.matmul.gemm_bytes import GROUPED, LOUD
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.byte_rows.rows import ByteKind, round_rows
from sp.ops.matmul.packed import pack, unpack
from sp.quant import BF16, BlockFormat, format_by_name

DRIVER = """
struct Job {
    const u8 *low, *high, *scales, *deltas, *low1, *high1, *scales1, *deltas1;
    u8* codes;
    f32* code_scales;
    u16* loud;
    const u32 *count, *channels;
    const u16* mask;
    i32 k_tiles, stride;
    u32 end;
};
static void thread_of(int lane, void* given) {
    const Job& j = *static_cast<Job*>(given);
    threadIdx.x = lane;
    CALL;
}
extern "C" void run(Job* job, int x, int y) {
    gridDim = {unsigned(x), unsigned(y), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_warp(thread_of, job);
}
"""
PLANE_NAMES = ("low", "high", "scales", "deltas")
PLANES = "j.low, j.high, j.scales, j.deltas"
CALLS = {
    "round_weight.cu": f"round_weight({PLANES}, j.codes, j.code_scales, j.loud, j.count, j.channels, j.mask, "
    "j.k_tiles, j.stride)",
    "loud_weight.cu": f"loud_weight({PLANES}, j.low1, j.high1, j.scales1, j.deltas1, 0, 0, 0, 0, j.loud, j.count, "
    "j.channels, j.k_tiles, j.end + 1, j.end, ~0u)",
}
POISON = 0x7FC1


class Job(ctypes.Structure):
    """Arguments of DRIVER."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in PLANE_NAMES),
        *((f"{name}1", ctypes.c_void_p) for name in PLANE_NAMES),
        *((name, ctypes.c_void_p) for name in ("codes", "code_scales")),
        *((name, ctypes.c_void_p) for name in ("loud", "count", "channels", "mask")),
        *((name, ctypes.c_int) for name in ("k_tiles", "stride")),
        ("end", ctypes.c_uint),
    )


@cache
def library(source: str, fmt: BlockFormat) -> ctypes.CDLL:
    defines = {"FORMAT": fmt.ggml_type, "HOST_LANES": 128, "__CUDA_ARCH__": 800}
    defines |= {"KIND": 0} if source == "round_weight.cu" else {}
    return compiled(source, DRIVER.replace("CALL", CALLS[source]), defines, Path(mkdtemp()), whole=True)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q3_K", "Q8_0", "Q4_0", "IQ4_XS", "BF16"])
@pytest.mark.parametrize("channels", [[], [0], [255, 256, 701], [*range(7, 512, 8)]], ids=len)
@pytest.mark.parametrize("blocks", [5, 48])
def test_columns_are_gathered_as_they_are_rounded(name: str, channels: list[int], blocks: int) -> None:
    fmt, rows, width = format_by_name(name), 72, 768
    rng = np.random.default_rng(len(channels))
    if fmt is BF16:
        data = fmt.encode(rng.standard_normal((rows, width)).astype(np.float32))
    else:
        data = random_blocks(rng, fmt, rows * width // fmt.block_size, 0.02).reshape(rows, -1)
    w, below = pack("w", fmt, (rows, width), data), pack("below", fmt, (40, width), data[:40])
    planes = {name: aligned(w.plane(name)) for name in PLANE_NAMES if w.plane(name) is not None}
    planes |= {f"{name}1": aligned(below.plane(name)) for name in PLANE_NAMES if below.plane(name) is not None}
    mask = np.zeros(width // 16, np.uint16)
    for channel in channels:
        mask[channel // 16] |= np.uint16(1 << channel % 16)
    count = aligned(np.array([len(channels)], np.uint32))
    listed, mask = aligned(np.array([*channels, *[9999] * (LOUD - len(channels))], np.uint32)), aligned(mask)

    def launched(source: str, grid: tuple[int, int], *, apart: bool) -> tuple[np.ndarray, ...]:
        codes = aligned(np.full((128, width), 0x55, np.uint8))
        scales = aligned(np.full((width // GROUPED, 128), np.nan, np.float32))
        loud = aligned(np.full((192, LOUD), POISON, np.uint16))
        job = Job(
            k_tiles=w.k_tiles, stride=128, end=w.row_tiles, codes=codes.ctypes.data, code_scales=scales.ctypes.data
        )
        for plane, values in planes.items():
            setattr(job, plane, values.ctypes.data)
        if apart:
            job.loud, job.count = loud.ctypes.data, count.ctypes.data
            job.channels, job.mask = listed.ctypes.data, mask.ctypes.data
        library(source, fmt).run(ctypes.byref(job), *grid)
        return codes, scales, loud

    anew = launched("round_weight.cu", (width // GROUPED, w.row_tiles), apart=True)
    kept = launched("round_weight.cu", (width // GROUPED, w.row_tiles), apart=False)
    _, _, gathered = launched("loud_weight.cu", (blocks, 1), apart=True)
    for got, want in zip(kept[:2], anew[:2], strict=True):
        np.testing.assert_array_equal(got, want)
    assert (kept[2] == POISON).all()
    np.testing.assert_array_equal(gathered[:128], anew[2][:128])
    assert (anew[2][128:] == POISON).all()
    if not channels:
        assert (gathered == POISON).all()
        return
    assert not gathered[:, len(channels) :].any()
    np.testing.assert_array_equal(gathered[128:168], gathered[:40])  # of the weight below
    values = (gathered[:rows, : len(channels)].astype(np.uint32) << 16).view(np.float32)
    exact = unpack(w)[:, channels]
    np.testing.assert_allclose(values, exact, atol=0.02 * np.abs(exact).max())  # scales are rounded to BF16 before
    twin = round_rows(unpack(w), ByteKind.INT8, np.array(channels), False)
    np.testing.assert_allclose(anew[1].T[:rows], twin.scales, rtol=0.02)
