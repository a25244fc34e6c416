"""Narrow F32 matrices on the device: products against float64, as close as float32 sums of BF16 inputs come."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64

from sp.models.device.to_device import empty_matrix, fill_rows
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.project import gated_project, project, project_add
from sp.ops.matmul.split_weight import SplitWeight
from sp.quant import F32, format_by_name

K = 512
EXACT, ROUNDED = 1e-11, 1e-7
"""What float32 sums make of a product, squared; what rounding weights to BF16 does at least."""


def split(rows: int, seed: int) -> tuple[SplitWeight, np.ndarray]:
    values = (np.random.default_rng(seed).standard_normal((rows, K)) * 0.05).astype(np.float32)
    made = empty_matrix("w", F32, values.shape)
    assert isinstance(made, SplitWeight)
    raw = cupy.asarray(values.view(np.uint8))
    for start in range(0, rows, 64):  # as they come from a file, the last ones fewer
        fill_rows(made, F32, start, raw[start : start + 64])
    return made, values.astype(np.float64)


def packed(name: str, rows: int) -> tuple[PackedWeight, np.ndarray]:
    fmt = format_by_name(name)
    raw = fmt.encode(np.random.default_rng(9).standard_normal((rows, K)).astype(np.float32) * 0.05)
    return pack(name, fmt, (rows, K), cupy.asarray(raw)), fmt.decode(raw).astype(np.float64)


@pytest.mark.parametrize("rows", [1, 48, 64, 100])
@pytest.mark.parametrize("tokens", [1, 5, 17, 48, 129, 300])
def test_no_bit_of_a_weight_is_lost(tokens: int, rows: int, guarded: Any, path: str) -> None:
    x = to_bf16(np.random.default_rng(tokens).standard_normal((tokens, K)).astype(np.float32))
    (alpha, dense), (beta, other), (wide, third) = split(rows, 1), split(rows, 2), packed("Q4_K", 200)
    given = guarded(x.shape, np.uint16, x)
    found = project(given, (wide, alpha, beta), f32=(False, True, True))
    assert [out.shape[1] for out in found] == [200, rows, rows]
    for out, want in zip(found[1:], (dense, other), strict=True):
        assert out.dtype == np.float32
        assert nmse(out, to_float64(x) @ want.T) < EXACT
        rounded = to_float64(to_bf16(want.astype(np.float32)))
        assert rows < 48 or nmse(to_float64(x) @ rounded.T, to_float64(x) @ want.T) > ROUNDED
    assert nmse(found[0], to_float64(x) @ third.T) < 5e-5
    (narrow,) = project(given, (beta,))
    assert narrow.dtype == np.uint16
    assert nmse(narrow, to_float64(x) @ other.T) < 1e-5


def test_after_a_norm_as_a_sum_and_as_a_gate(guarded: Any, path: str) -> None:
    rng = np.random.default_rng(0)
    x, norm = rng.standard_normal((33, K)).astype(np.float32), np.ones(K, np.float32)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-6)
    (w, dense), (gate, other) = split(96, 3), split(96, 4)
    given = guarded(x.shape, np.float32, x), (guarded(norm.shape, np.float32, norm), 1e-6)
    (found,) = project(given[0], (w,), given[1], f32=(True,))
    assert nmse(found, normed @ dense.T) < 2e-5  # inputs are rounded to bf16
    stream = guarded((33, 96), np.float32, x[:, :96])
    project_add(stream, guarded(x.shape, np.uint16, to_bf16(x)), w)
    assert nmse(stream, x[:, :96] + to_float64(to_bf16(x)) @ dense.T) < 1e-11
    g, u = normed @ other.T, normed @ dense.T
    assert nmse(gated_project(given[0], gate, w, given[1]), g / (1 + np.exp(-g)) * u) < 5e-5
