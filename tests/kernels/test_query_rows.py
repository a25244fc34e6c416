"""Rows of queries, and logits, on emulated blocks against their NumPy twins."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.kernels.specs.cap_logits import CAP_THREADS, EACH
from sp.kernels.specs.query_rows import QUERY_THREADS, VALUES
from sp.ops.attention.beside_gate import beside_gate
from sp.ops.attention.position_scale import PositionScale, scale_queries
from sp.ops.sampling.cap_logits import cap_logits

RUN = """
extern "C" void scaled(u16* q, const i64* positions, i32 tokens, i32 steps, i64 length, f32 scale, int count) {
    const i32 across = (steps + count - 1) / count;
    for (i32 y = 0; y < across; ++y) {
        gridDim = {unsigned(tokens), unsigned(across), 1};
        run_blocks(tokens, count, [=] { blockIdx.y = y; scale_queries(q, positions, steps, length, scale); });
    }
}

extern "C" void joined(const u16* q, const u16* gate, u16* wide, i64 steps, int count) {
    run_blocks(int((steps + count - 1) / count), count, [=] { beside_gate(q, gate, wide, steps); });
}
"""
CAP = """
extern "C" void run(f32* logits, i64 size, f32 cap, f32 scale, int blocks, int count) {
    run_blocks(blocks, count, [=] { cap_logits(logits, size, cap, scale); });
}
"""


@cache
def compiled(steps: int = 16) -> ctypes.CDLL:
    return hosted("query_rows.cu", RUN, Path(mkdtemp()) / "rows", STEPS=steps)


@cache
def capping() -> ctypes.CDLL:
    return hosted("cap_logits.cu", CAP, Path(mkdtemp()) / "cap")


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


@pytest.mark.parametrize(("tokens", "heads", "d"), [(1, 1, 64), (3, 16, 128), (5, 3, 256)])
def test_gates_are_stored_next_to_their_queries(tokens: int, heads: int, d: int) -> None:
    rng = np.random.default_rng(d)
    q, gate = (aligned(rng.integers(0, 1 << 16, (tokens, heads, d)).astype(np.uint16)) for _ in range(2))
    wide = aligned(np.zeros((tokens, heads, 2 * d), np.uint16))
    given = pointer(q), pointer(gate), pointer(wide), ctypes.c_int64(q.size // VALUES), QUERY_THREADS
    compiled(d // VALUES).joined(*given)
    np.testing.assert_array_equal(wide, beside_gate(q, gate))


@pytest.mark.parametrize("cap", [None, 20.0])
@pytest.mark.parametrize("size", [1, 97, 1024, 2500])
def test_logits_are_scaled_and_kept_within_a_bound(size: int, cap: float | None) -> None:
    logits = aligned((40 * np.random.default_rng(size).standard_normal(size)).astype(np.float32))
    want = cap_logits(logits.copy(), 0.7, cap)
    how = (0.0, 0.7) if cap is None else (cap, 0.7 / cap)
    blocks = -(-size // (CAP_THREADS * EACH))
    capping().run(pointer(logits), ctypes.c_int64(size), *map(ctypes.c_float, how), blocks, CAP_THREADS)
    np.testing.assert_allclose(logits, want, rtol=1e-6)
