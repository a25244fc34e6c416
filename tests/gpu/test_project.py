"""project, project_add and gated_project on the device, on both paths, across the border of decode and prefill kernels.

Against float64. Bounds on the NMSE: BF16 results and inputs, and weights that prefill rounds to BF16 with their scales,
make 5e-5.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from file_rows import NEW, file_rows

from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.project import gated_project, project, project_add
from sp.quant import format_by_name

TOKENS = [1, 2, 7, 8, 9, 16, 23, 31, 32, 33, 63, 64, 65, 127, 128, 129]
BOUND, EPS, K = 5e-5, 1e-6, 512


@cache
def weight(name: str, rows: int, seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    fmt = format_by_name(name)
    packed = file_rows(fmt, np.random.default_rng(seed).standard_normal((rows, K)).astype(np.float32) * 0.05)
    return pack(name, fmt, (rows, K), cupy.asarray(packed)), fmt.decode(packed).astype(np.float64)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("tokens", TOKENS)
def test_project(tokens: int, guarded: Any, path: str) -> None:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, K)).astype(np.float32)
    norm = rng.uniform(0.5, 1.5, K).astype(np.float32)
    parts = [weight("Q6_K", 200, 0), weight("Q4_K", 136, 1), weight("Q4_K", 48, 2), weight("Q4_K", 48, 3)]
    wide = (False, False, True, True)
    given = guarded(norm.shape, np.float32, norm), EPS
    outs = project(guarded(x.shape, np.float32, x), [w for w, _ in parts], given, f32=wide)
    for (_, dense), out, is_wide in zip(parts, outs, wide, strict=True):
        assert out.dtype == (np.float32 if is_wide else np.uint16)
        assert nmse(out, normed(x, norm) @ dense.T) < BOUND
    (plain,) = project(guarded(x.shape, np.uint16, to_bf16(x)), [parts[0][0]])
    assert nmse(plain, to_float64(to_bf16(x)) @ parts[0][1].T) < BOUND


@pytest.mark.parametrize("tokens", [1, 6, 16, 17])
def test_formats_of_two_forms(tokens: int, guarded: Any, path: str) -> None:
    """K-quants and others share a launch: a lone token's inputs go in two forms, its squares are summed once."""
    rng = np.random.default_rng(tokens)
    x, norm = rng.standard_normal((tokens, K)).astype(np.float32), rng.uniform(0.5, 1.5, K).astype(np.float32)
    parts = [weight("Q6_K", 200, 0), weight("Q8_0", 48, 1), weight("Q4_K", 136, 2), weight("BF16", 48, 3)]
    given = guarded(norm.shape, np.float32, norm), EPS
    for _ in range(5):
        for (_, dense), out in zip(
            parts, project(guarded(x.shape, np.float32, x), [w for w, _ in parts], given), strict=True
        ):
            assert nmse(out, normed(x, norm) @ dense.T) < BOUND


@pytest.mark.parametrize("tokens", TOKENS)
def test_project_add(tokens: int, guarded: Any, path: str) -> None:
    rng = np.random.default_rng(tokens)
    x, h = rng.standard_normal((tokens, 200)).astype(np.float32), rng.standard_normal((tokens, K)).astype(np.float32)
    w, dense = weight("Q4_K", 200)
    stream = guarded(x.shape, np.float32, x)
    assert project_add(stream, guarded(h.shape, np.uint16, to_bf16(h)), w) is stream
    assert nmse(stream, x + to_float64(to_bf16(h)) @ dense.T) < BOUND


@pytest.mark.parametrize(
    "names", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K"), ("Q4_K", "Q8_0"), ("Q3_K", "IQ4_XS"), ("IQ3_S", "IQ3_S")]
)
@pytest.mark.parametrize("tokens", [1, 8, 16, 33, 64, 129])
def test_gated_project(tokens: int, names: tuple[str, str], guarded: Any, path: str) -> None:
    rng = np.random.default_rng(tokens)
    x, norm = rng.standard_normal((tokens, K)).astype(np.float32), rng.uniform(0.5, 1.5, K).astype(np.float32)
    (gate, g), (up, u) = weight(names[0], 200, 0), weight(names[1], 200, 1)
    out = gated_project(guarded(x.shape, np.float32, x), gate, up, (guarded(norm.shape, np.float32, norm), EPS))
    a, b = normed(x, norm) @ g.T, normed(x, norm) @ u.T
    assert nmse(out, a / (1 + np.exp(-a)) * b) < BOUND


@pytest.mark.parametrize("name", ["Q5_K", "Q8_0", "Q4_0", "BF16", "F16", *(fmt.name for fmt in NEW)])
@pytest.mark.parametrize("tokens", [1, 8, 40, 150])
def test_other_formats(name: str, tokens: int, guarded: Any, path: str) -> None:
    w, dense = weight(name, 200)
    x = np.random.default_rng(0).standard_normal((tokens, K)).astype(np.float32)
    (out,) = project(guarded(x.shape, np.uint16, to_bf16(x)), [w], f32=[True])
    assert nmse(out, to_float64(to_bf16(x)) @ dense.T) < BOUND


@pytest.mark.parametrize(
    "names", [("Q4_K", "Q6_K"), ("Q6_K", "Q4_K"), ("Q4_K", "Q8_0"), ("Q3_K", "IQ4_XS"), ("IQ4_XS", "IQ4_NL")]
)
@pytest.mark.parametrize("tokens", [1, 9, 32, 40, 64])
def test_feed_forward(tokens: int, names: tuple[str, str], guarded: Any, path: str) -> None:
    """The result of gate and up goes to down in the form its kernel takes."""
    rng = np.random.default_rng(tokens)
    x, norm = rng.standard_normal((tokens, K)).astype(np.float32), rng.uniform(0.5, 1.5, K).astype(np.float32)
    (gate, g), (up, u) = weight(names[0], 512, 0), weight(names[0], 512, 1)
    fmt = format_by_name(names[1])
    rows = file_rows(fmt, rng.standard_normal((K, 512)).astype(np.float32) * 0.05)
    down, dense = pack(names[1], fmt, (K, 512), cupy.asarray(rows)), fmt.decode(rows).astype(np.float64)
    stream = guarded(x.shape, np.float32, x)
    h = gated_project(stream, gate, up, (guarded(norm.shape, np.float32, norm), EPS), down)
    project_add(stream, h, down)
    a, b = normed(x, norm) @ g.T, normed(x, norm) @ u.T
    assert nmse(stream, x + (a / (1 + np.exp(-a)) * b) @ dense.T) < BOUND
