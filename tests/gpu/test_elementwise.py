"""rms_norm and swiglu on the device against float64."""

from __future__ import annotations

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64

from sp.ops.activations import swiglu
from sp.ops.norms import rms_norm

BF16 = 2.0**-16
"""Squared error of rounding to bf16: no value is off by more than 2^-8 of itself."""


@pytest.fixture
def careful(guarded, monkeypatch):
    import cupy

    monkeypatch.setattr(cupy, "empty", guarded)
    monkeypatch.setattr(cupy, "empty_like", lambda a: guarded(a.shape, a.dtype))
    return guarded


@pytest.mark.parametrize("d", [4, 128, 256, 512, 1000, 1024, 2560, 5120, 8192])
@pytest.mark.parametrize("rows", [1, 3, 130])
def test_rms_norm(d, rows, careful) -> None:
    rng = np.random.default_rng([d, rows])
    x = (rng.standard_normal((rows, d)) * 10.0 ** rng.integers(-4, 4, (rows, 1))).astype(np.float32)
    weight = rng.standard_normal(d).astype(np.float32)
    want = rms_norm(x.astype(np.float64), weight.astype(np.float64), 1e-6)
    device = careful(x.shape, np.float32, x), careful(d, np.float32, weight)
    assert nmse(rms_norm(*device, 1e-6), want) < BF16
    assert nmse(rms_norm(*device, 1e-6, f32=True), want) < 1e-12


@pytest.mark.parametrize("shape", [(1, 8), (1, 17408), (3, 512), (77, 1000)])
def test_swiglu(shape, careful) -> None:
    rng = np.random.default_rng(shape)
    gate, up = (to_bf16(rng.standard_normal(shape) * size) for size in (20.0, 1.0))
    want = swiglu(to_float64(gate), to_float64(up))
    assert nmse(swiglu(careful(shape, np.uint16, gate), careful(shape, np.uint16, up)), want) < BF16


@pytest.mark.parametrize("value", [-3e38, -100.0, -0.0, 100.0, 3e38])
def test_swiglu_at_the_ends_of_the_range(value, careful) -> None:
    gate = to_bf16(np.full((1, 8), value))
    out = to_float64(swiglu(careful((1, 8), np.uint16, gate), careful((1, 8), np.uint16, to_bf16(np.ones((1, 8))))))
    np.testing.assert_allclose(out, np.maximum(to_float64(gate), 0.0), atol=1e-30)
