"""rms_norm on emulated blocks: rows against the twin."""

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
extern "C" void run(const f32* x, const f32* weight, u16* y, f32* y_f32, i32 rows, int blocks, int count) {
    gridDim = {unsigned(blocks), 1, 1};
    run_blocks(blocks, count, [=] { rms_norm(x, weight, y, y_f32, rows, 1e-6f); });
}
"""


@cache
def compiled(width: int) -> ctypes.CDLL:
    return hosted("rms_norm.cu", RUN, Path(mkdtemp()) / "norm", COLS=width)


@pytest.mark.parametrize("width", [64, 256, 576, 1024, 1280])
@pytest.mark.parametrize("rows", [1, 7, 9, 23])
def test_rows_are_normed(width: int, rows: int) -> None:
    rng = np.random.default_rng([width, rows])
    x = aligned(rng.standard_normal((rows, width)).astype(np.float32))
    weight = aligned(rng.standard_normal(width).astype(np.float32))
    x[:, 5] *= 300
    x[rows // 2, 9] = np.nan if rows == 23 else 1
    y, guard = aligned(np.full((rows + 4, width), 7, np.uint16)), aligned(np.full((rows + 4, width), 7, np.float32))
    defines = {"COLS": width}
    given = map(pointer, (x, weight, y, guard))
    compiled(width).run(*given, rows, -(-rows // norm_rows(defines)), RMS_NORM.block(defines))
    want = rms_norm(x, weight, 1e-6)
    np.testing.assert_allclose((y[:rows].astype(np.uint32) << 16).view(np.float32), want, rtol=2**-8)
    np.testing.assert_allclose(guard[:rows], want, rtol=1e-6, atol=1e-7)
    assert (guard[rows:] == 7).all()
    assert (y[rows:] == 7).all()
