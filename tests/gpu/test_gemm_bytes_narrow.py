"""Gate and up in bytes with few inputs: the bits of the kernel for any width, in every cut into jobs, and float64's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse, to_float64
from test_gemm_bytes import GATED, inputs, numbers, weight

from sp.kernels.launch import launched_sources, reset_launched
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import SWIGLU
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import ByteKind, round_inputs, round_weights
from sp.ops.matmul import gemm_bytes_narrow_sm90, gemm_bytes_sm90
from sp.ops.matmul.project import gated_project
from sp.quant import Q4_K, Q6_K, Math

POISON = 0x7FC0
"""A NaN in BF16."""


@pytest.fixture(autouse=True)
def hopper() -> None:
    if native_path() != "sm_90a":
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("loud", [0, 5])
@pytest.mark.parametrize("width", [256, 512, 768, 1024])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 8), (127, 72), (128, 64), (255, 520), (257, 3072), (5000, 200)])
def test_the_same_bits(tokens: int, rows: int, width: int, loud: int) -> None:
    import cupy

    given = cupy.asarray(inputs(tokens, width, loud))
    found = loud_channels(given)
    x = round_inputs(given, ByteKind.INT8, found)
    w = round_weights([weight(Q6_K if i else Q4_K, rows, width, i) for i in range(2)], ByteKind.INT8, found)
    got, want = (cupy.full((tokens + 2, rows), POISON, np.uint16) for _ in range(2))
    for _ in range(20):  # a race shows in few of many runs
        got[...] = POISON
        gemm_bytes_narrow_sm90.gemm(x, w, found, (got[1:-1],), SWIGLU)
        gemm_bytes_sm90.gemm(x, w, found, (want[1:-1],), SWIGLU)
        np.testing.assert_array_equal(got.get(), want.get())


def test_products_are_those_of_float64() -> None:
    import cupy

    tokens, rows, width = 700, 328, 1024
    given = cupy.asarray(inputs(tokens, width))
    found = loud_channels(given)
    weights = [weight(Q4_K, rows, width, i) for i in range(2)]
    x, w = round_inputs(given, ByteKind.INT8, found), round_weights(weights, ByteKind.INT8, found)
    exact = numbers(x) * np.repeat(x.scales.get()[:, :tokens].T.astype(np.float64), 256, axis=1)
    y = exact @ (numbers(w) * np.repeat(w.scales.get().T.astype(np.float64), 256, axis=1)).T
    want = y[:, :rows] / (1 + np.exp(-y[:, :rows])) * y[:, 384 : 384 + rows]
    out = cupy.empty((tokens, rows), np.uint16)
    gemm_bytes_narrow_sm90.gemm(x, w, found, (out,), SWIGLU)
    assert int(found.count[0]) == 0
    assert nmse(to_float64(out), want) <= GATED


@pytest.mark.parametrize("each", [1, 2, 5])
def test_any_cut_into_jobs_gives_the_same(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    given, weights = cupy.asarray(inputs(1100, 512, 3)), [weight(Q4_K, 328, 512, i) for i in range(2)]
    found = loud_channels(given)
    x, w = round_inputs(given, ByteKind.INT8, found), round_weights(weights, ByteKind.INT8, found)
    one, other = (cupy.full((1100, 328), POISON, np.uint16) for _ in range(2))
    gemm_bytes_narrow_sm90.gemm(x, w, found, (one,), SWIGLU)
    monkeypatch.setattr(gemm_bytes_narrow_sm90, "plan_of", lambda n, tiles, clusters: (5, 5 * -(-tiles // each), each))
    gemm_bytes_narrow_sm90.gemm(x, w, found, (other,), SWIGLU)
    np.testing.assert_array_equal(one.get(), other.get())


def test_layers_take_it() -> None:
    import cupy

    x = cupy.asarray(np.random.default_rng(5).standard_normal((1100, 1024)).astype(np.float32))
    norm = (cupy.ones(1024, np.float32), 1e-6)
    weights, made = [weight(Q4_K, 512, 1024, i) for i in range(2)], {}
    reset_launched()
    for precision in (Math.BF16, Math.INT8):
        gate, up = (replace(w, math=precision) for w in weights)
        made[precision] = to_float64(gated_project(x, gate, up, norm))
    assert {"gemm_bytes_narrow_sm90.cu", "gemm_sm90.cu"} <= set(launched_sources())
    assert 1e-9 < nmse(made[Math.INT8], made[Math.BF16]) < 6e-4
