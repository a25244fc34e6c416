"""Rows of queries on emulated blocks against their NumPy twins."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.kernels.specs.query_rows import QUERY_THREADS, VALUES
from sp.ops.attention.position_scale import PositionScale, scale_queries

RUN = """
extern "C" void scaled(u16* q, const i64* positions, i32 tokens, i32 steps, i64 length, f32 scale, int count) {
    const i32 across = (steps + count - 1) / count;
    for (i32 y = 0; y < across; ++y) {
        gridDim = {unsigned(tokens), unsigned(across), 1};
        run_blocks(tokens, count, [=] { blockIdx.y = y; scale_queries(q, positions, steps, length, scale); });
    }
}
"""


@cache
def compiled() -> ctypes.CDLL:
    return hosted("query_rows.cu", RUN, Path(mkdtemp()) / "rows")


@pytest.mark.parametrize(("heads", "d"), [(1, 64), (4, 128), (32, 128), (5, 256)])
def test_queries_grow_with_their_positions(heads: int, d: int) -> None:
    rng, by = np.random.default_rng(heads), PositionScale(0.1, 100)
    q = aligned(rng.standard_normal((7, heads, d)).astype(np.float16))
    positions = aligned(np.array([0, 1, 99, 100, 250, 1 << 20, 1 << 40]))
    want = q.astype(np.float32)
    scale_queries(want, positions, by)
    compiled().scaled(
        pointer(q), pointer(positions), 7, heads * d // VALUES, ctypes.c_int64(by.length), ctypes.c_float(by.scale),
        QUERY_THREADS,
    )  # fmt: skip
    np.testing.assert_allclose(q.astype(np.float32), want, rtol=2**-11, atol=1e-7)
