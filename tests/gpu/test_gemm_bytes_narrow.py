"""Products of bytes with few inputs: the bits of the kernel for any width, in every cut into jobs, and float64's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse, to_float64
from test_gemm_bytes import GATED, ROUNDED, inputs, numbers, weight

from sp.kernels.launch import launched_sources, reset_launched
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import ByteKind, round_inputs, round_weights
from sp.ops.matmul import gemm_bytes_narrow_sm90, gemm_bytes_sm90
from sp.ops.matmul.project import gated_project, project
from sp.quant import Q4_K, Q6_K, Math

POISON = 0x7FC0
"""A NaN in BF16."""


@pytest.fixture(autouse=True)
def hopper() -> None:
    if native_path() != "sm_90a":
        pytest.skip("needs compute capability 9.0")


def poisoned(tokens: int, rows: int):
    """Room for results, with a row of NaN before and behind it."""
    import cupy

    return cupy.full((tokens + 2, rows), POISON, np.uint16)


@pytest.mark.parametrize("loud", [0, 5])
@pytest.mark.parametrize("width", [256, 512, 768, 1024])
@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(1, (8,)), (127, (72, 1000, 136)), (128, (64,)), (255, (520,)), (257, (2048, 1024, 1024)), (5000, (200, 64))],
)
def test_the_same_bits(tokens: int, rows: tuple[int, ...], width: int, loud: int) -> None:
    import cupy

    given = cupy.asarray(inputs(tokens, width, loud))
    found = loud_channels(given)
    x = round_inputs(given, ByteKind.INT8, found)
    stored = [weight(Q6_K if i else Q4_K, count, width, i) for i, count in enumerate(rows)]
    gated = [weight(Q4_K, rows[0], width, i) for i in range(2)]
    for epilogue, weights, counts in ((STORE, stored, rows), (SWIGLU, gated, rows[:1])):
        w = round_weights(weights, ByteKind.INT8, found)
        got, want = ([poisoned(tokens, count) for count in counts] for _ in range(2))
        gemm_bytes_narrow_sm90.gemm(x, w, found, [y[1:-1] for y in got], epilogue)
        gemm_bytes_sm90.gemm(x, w, found, [y[1:-1] for y in want], epilogue)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine.get(), theirs.get())


@pytest.mark.parametrize(("epilogue", "bound"), [(STORE, ROUNDED), (SWIGLU, GATED)], ids=["store", "swiglu"])
def test_products_are_those_of_float64(epilogue, bound: float) -> None:
    import cupy

    tokens, rows, width = 700, 328, 1024
    given = cupy.asarray(inputs(tokens, width))
    found = loud_channels(given)
    weights = [weight(Q4_K, rows, width, i) for i in range(1 + (epilogue is SWIGLU))]
    x, w = round_inputs(given, ByteKind.INT8, found), round_weights(weights, ByteKind.INT8, found)
    exact = numbers(x) * np.repeat(x.scales.get()[:, :tokens].T.astype(np.float64), 256, axis=1)
    y = exact @ (numbers(w) * np.repeat(w.scales.get().T.astype(np.float64), 256, axis=1)).T
    want = y[:, :rows]
    if epilogue is SWIGLU:
        want = want / (1 + np.exp(-want)) * y[:, 384 : 384 + rows]
    out = cupy.empty((tokens, rows), np.uint16)
    gemm_bytes_narrow_sm90.gemm(x, w, found, (out,), epilogue)
    assert int(found.count[0]) == 0
    assert nmse(to_float64(out), want) <= bound


@pytest.mark.parametrize("each", [1, 2, 5])
def test_any_cut_into_jobs_gives_the_same(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    given, weights = cupy.asarray(inputs(1100, 512, 3)), [weight(Q4_K, 328, 512, i) for i in range(2)]
    found = loud_channels(given)
    x, w = round_inputs(given, ByteKind.INT8, found), round_weights(weights, ByteKind.INT8, found)
    found_by = []
    for tiles in (None, each):
        if tiles is not None:
            monkeypatch.setattr(
                gemm_bytes_narrow_sm90, "plan_of", lambda n, tiles, clusters: (5, 5 * -(-tiles // each), each)
            )
        outs = [cupy.full((1100, 328), POISON, np.uint16) for _ in range(3)]
        gemm_bytes_narrow_sm90.gemm(x, w, found, outs[:2], STORE)
        gemm_bytes_narrow_sm90.gemm(x, w, found, outs[2:], SWIGLU)
        found_by.append(np.stack([y.get() for y in outs]))
    np.testing.assert_array_equal(*found_by)


def test_layers_take_it() -> None:
    import cupy

    x = cupy.asarray(np.random.default_rng(5).standard_normal((1100, 1024)).astype(np.float32))
    norm = (cupy.ones(1024, np.float32), 1e-6)
    weights, made = [weight(Q4_K, 512, 1024, i) for i in range(4)], {}
    reset_launched()
    for math in (Math.BF16, Math.INT8):
        q, k, gate, up = (replace(w, math=math) for w in weights)
        made[math] = [to_float64(y) for y in (*project(x, (q, k), norm), gated_project(x, gate, up, norm))]
    assert {"gemm_bytes_narrow_sm90.cu", "gemm_sm90.cu"} <= set(launched_sources())
    for got, want in zip(made[Math.INT8], made[Math.BF16], strict=True):
        assert 1e-9 < nmse(got, want) < 6e-4
