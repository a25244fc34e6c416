"""rms_norm on emulated blocks: rows against the twin, and with peaks the largest of each column."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.kernels.specs.elementwise import RMS_NORM, norm_rows
from sp.ops.norms import rms_norm

RUN = """
extern "C" void run(const f32* x, const f32* weight, u16* y, f32* y_f32, u32* peaks, i32 rows, int blocks, int count) {
    gridDim = {unsigned(blocks), 1, 1};
    run_blocks(blocks, count, [=] { rms_norm(x, weight, y, y_f32, peaks, rows, 1e-6f); });
}
"""


@cache
def compiled(width: int, peaks: int) -> ctypes.CDLL:
    return hosted("rms_norm.cu", RUN, Path(mkdtemp()) / "norm", COLS=width, PEAKS=peaks)


@pytest.mark.parametrize("width", [64, 256, 576, 1024, 1280])
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (7, 7), (9, 2), (23, 5)])
def test_rows_are_normed_and_peaks_raised(width: int, rows: int, blocks: int) -> None:
    rng = np.random.default_rng([width, rows])
    x = aligned(rng.standard_normal((rows, width)).astype(np.float32))
    weight = aligned(rng.standard_normal(width).astype(np.float32))
    x[:, 5] *= 300
    x[rows // 2, 9] = np.nan if rows == 23 else 1
    peaks = aligned(np.zeros(width, np.uint32))
    peaks[3] = np.float32(1e9).view(np.uint32)
    y = aligned(np.full((rows, width), 7, np.uint16))
    given = [pointer(x), pointer(weight), pointer(y)]
    compiled(width, 1).run(*given, None, pointer(peaks), rows, blocks, RMS_NORM.block({"COLS": width, "PEAKS": 1}))
    want, got = rms_norm(x, weight, 1e-6), (y.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, want, rtol=2**-8)
    largest = np.abs(got).max(axis=0).view(np.uint32)
    largest[3] = peaks[3]
    assert ((peaks == largest) | (np.isnan(got).any(axis=0) & (peaks > 0x7F800000))).all()
    alone, guard = {"COLS": width}, aligned(np.full((rows + 4, width), 7, np.float32))
    y_f32 = guard[:rows]
    grid = -(-rows // norm_rows(alone))
    compiled(width, 0).run(*given, pointer(y_f32), None, rows, grid, RMS_NORM.block(alone))
    assert (guard[rows:] == 7).all()
    np.testing.assert_allclose(y_f32, want, rtol=1e-6, atol=1e-7)
