"""Rows rotated and rounded to bytes on emulated blocks, against the NumPy twin."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from byte_order import byte_order
from host_code import aligned, hosted, pointer

from sp.kernels.specs.matmul.gemm_bytes import LOUD, ROUND_ROWS
from sp.ops.byte_rows.rows import ByteKind, round_rows

RUN = """
extern "C" void run(const u16* x, u8* codes, f32* scales, u16* loud, const u32* count, const u32* channels,
                    const u32* mask, i32 rows, int blocks, int threads) {
    run_blocks(blocks, threads, [=] { round_rows(x, codes, scales, loud, count, channels, mask, rows); });
}
"""


@cache
def kernel(width: int) -> ctypes.CDLL:
    return hosted("round_rows.cu", RUN, Path(mkdtemp()) / "rows", COLS=width, KIND=0)


@pytest.mark.parametrize("loud", [None, 0, 3, 64])
@pytest.mark.parametrize("width", [256, 512, 768, 1024, 1280, 1536, 2048, 2816])
def test_rows_are_those_of_the_twin(width: int, loud: int | None) -> None:
    rows, held = 7, 12
    x = np.random.default_rng(width).standard_normal((rows, width)).astype(np.float32)
    which = np.sort(np.random.default_rng(1).choice(width - 1, loud or 0, replace=False))
    x[:, which] *= 500
    x[1, 17] = 1000
    x[2, :] += 3
    x[3] = 0
    x[4, width - 1] = np.nan
    x[5] *= 2.0**-110
    bits = aligned((x.view(np.uint32) >> 16).astype(np.uint16))
    guarded = aligned(np.full((rows + 2, width), 0x55, np.uint8))
    codes, scales = guarded[1:-1], aligned(np.full(held + 1, 7, np.float32))
    threads = ROUND_ROWS.block({"COLS": width})
    beside = aligned(np.full((rows + 1, LOUD), 0x55, np.uint16))
    marked = np.packbits(np.isin(np.arange(width), which), bitorder="little").view(np.uint32)
    listed = np.array([*which, *[width] * (LOUD - len(which))], np.uint32)
    found = map(aligned, (np.array([len(which)], np.uint32), listed, marked if len(which) else ~marked))
    given = (None,) * 4 if loud is None else (beside, *found)
    kernel(width).run(*(p if p is None else pointer(p) for p in (bits, codes, scales, *given)), rows, held, threads)
    twin = round_rows((bits.astype(np.uint32) << 16).view(np.float32), ByteKind.INT8, which, True)
    if len(which):
        values = (beside[:rows].astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(values[:, : len(which)], twin.loud)
        assert not values[:, len(which) :].any()
    assert (beside[rows if len(which) else 0 :] == 0x55).all()
    np.testing.assert_array_equal(codes.view(np.int8), twin.codes[:, byte_order(width)])
    np.testing.assert_array_equal(scales[:rows], twin.scales)
    assert np.isnan(scales[4])
    assert not scales[[3, 5]].any()
    assert not scales[rows:held].any()
    assert scales[held] == 7
    assert (guarded[[0, -1]] == 0x55).all()
