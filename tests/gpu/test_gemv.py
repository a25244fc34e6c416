"""The decode kernel against float64: every format, epilogue and number of tokens, with guards and NaN all round.

Bounds on the NMSE. float32 results of BF16 inputs are exact up to float32 sums (1e-7: K-quants also take sums of
inputs as two bf16, one token of most formats goes as 16-bit integers; F16 weights are rounded to BF16, 1e-5). BF16
results add one rounding, a norm another before the product: together 4e-5, since a few large inputs make most of a
result.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np
import pytest
from captured import capture
from compare import nmse, to_bf16, to_float64
from file_rows import NEW, file_rows

from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.kernels.specs.matmul.gemv import Layout
from sp.ops.matmul import gemv as module
from sp.ops.matmul.gemv import gemv, held
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import format_by_name

ADDED = [fmt.name for fmt in NEW]
NAMES = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "BF16", "F16", *ADDED]
EXACT = {"F16": 1e-5}
ROUNDED = 4e-5
EPS = 1e-6


@cache
def weight(name: str, shape: tuple[int, int], seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    fmt = format_by_name(name)
    rows = file_rows(fmt, np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.05)
    return pack(name, fmt, shape, cupy.asarray(rows)), fmt.decode(rows).astype(np.float64)


def inputs(tokens: int, k: int, seed: int = 1) -> np.ndarray:
    """Normal values, some far out, as real activations have them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    x[:, rng.integers(0, k, 4)] *= 50
    return x


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=1, keepdims=True) + EPS) * weight


def product(guarded: Any, x: np.ndarray, w: PackedWeight, dtype: Any) -> Any:
    out = guarded((len(x), w.shape[0]), dtype)
    gemv(guarded(x.shape, np.uint16, to_bf16(x)), [w], [out], STORE)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 8])
def test_formats(name: str, tokens: int, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    want = to_float64(to_bf16(x)) @ dense.T
    wide = product(guarded, x, w, np.float32)
    assert nmse(wide, want) < EXACT.get(name, 1e-7)
    assert nmse(product(guarded, x, w, np.uint16), want) < ROUNDED
    assert bool((product(guarded, x, w, np.float32) == wide).all()), "a rerun differs"


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", *ADDED])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 9, 16])
def test_tokens(name: str, tokens: int, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    assert nmse(product(guarded, x, w, np.float32), to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.parametrize("shape", [(8, 256), (48, 5120), (5120, 6144), (5120, 17408)])
def test_shapes(shape: tuple[int, int], guarded: Any) -> None:
    w, dense = weight("Q4_K", shape)
    x = inputs(1, shape[1])
    assert nmse(product(guarded, x, w, np.float32), to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.parametrize("name", ["Q3_K", "IQ4_XS", "IQ3_S", "IQ4_NL", "Q5_1"])
@pytest.mark.parametrize("shape", [(8, 256), (72, 768), (328, 17408)])
def test_shapes_of_the_added_formats(shape: tuple[int, int], name: str, guarded: Any) -> None:
    w, dense = weight(name, shape)
    x = inputs(1, shape[1])
    assert nmse(product(guarded, x, w, np.float32), to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.parametrize("name", ["Q8_0", *(fmt.name for fmt in NEW if not fmt.packing.super)])
@pytest.mark.parametrize("tokens", [1, 8])
def test_widths_of_one_tile(tokens: int, name: str, guarded: Any) -> None:
    """Rows that are not whole stages of 256 inputs: a tile is a stage."""
    w, dense = weight(name, (80, 192))
    x = inputs(tokens, 192)
    assert nmse(product(guarded, x, w, np.float32), to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", *ADDED])
def test_residual_add(tokens: int, name: str, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    residual = np.random.default_rng(2).standard_normal((tokens, 200)).astype(np.float32)
    stream = guarded(residual.shape, np.float32, residual)
    gemv(guarded(x.shape, np.uint16, to_bf16(x)), [w], [stream], ADD)
    assert nmse(stream, residual + to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.flags_between_blocks
@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", *ADDED])
@pytest.mark.parametrize("shape", [(8, 1024), (200, 8704), (13008, 1024)])
def test_residual_add_by_pairs_of_blocks(shape: tuple[int, int], name: str, guarded: Any, monkeypatch: Any) -> None:
    """One token and long strips: from compute capability 9.0 two blocks share each, many strips after each other."""
    monkeypatch.setattr(module, "PAIRS_FROM", 1024)
    module._variant.cache_clear()
    w, dense = weight(name, shape)
    x = inputs(1, shape[1])
    residual = np.random.default_rng(2).standard_normal((1, shape[0])).astype(np.float32)
    given, want = guarded(x.shape, np.uint16, to_bf16(x)), residual.astype(np.float64)
    stream = guarded(residual.shape, np.float32, residual)
    for _ in range(4):
        gemv(given, [w], [stream], ADD)
        want = want + to_float64(to_bf16(x)) @ dense.T
    module._variant.cache_clear()
    assert nmse(stream, want) < 1e-7


@pytest.mark.parametrize("tokens", [1, 6, 16])
@pytest.mark.parametrize(
    "names",
    [
        ("Q6_K", "Q4_K", "Q4_K", "Q5_K"),
        ("Q3_K", "IQ4_XS", "IQ3_S", "Q5_K"),
        ("IQ4_NL", "Q5_1", "Q6_K", "Q8_0"),
        ("MXFP4", "Q4_1", "Q5_0", "IQ4_XS"),
    ],
)
def test_weights_of_several_formats_after_a_norm(names: tuple[str, ...], tokens: int, guarded: Any) -> None:
    """As a recurrent layer has them, with small ones whose last tile is mostly padding."""
    shapes = [(208, 1280), (96, 1280), (48, 1280), (8, 1280)]
    weights = [weight(name, shape, seed) for seed, (name, shape) in enumerate(zip(names, shapes, strict=True))]
    x, norm = inputs(tokens, 1280), np.random.default_rng(3).uniform(0.5, 1.5, 1280).astype(np.float32)
    outs = [guarded((tokens, w.shape[0]), dt) for (w, _), dt in zip(weights, "HHff", strict=True)]
    given = guarded(x.shape, np.float32, x), (guarded(norm.shape, np.float32, norm), EPS)
    gemv(given[0], [w for w, _ in weights], outs, STORE, given[1])
    for (_, dense), out in zip(weights, outs, strict=True):
        assert nmse(out, normed(x, norm) @ dense.T) < ROUNDED


@pytest.mark.parametrize("tokens", [1, 5])
def test_formats_of_two_forms_share_a_launch_after_a_norm(tokens: int, guarded: Any) -> None:
    """K-quants take a lone token as integers, the others as BF16; both are read and normed in one launch."""
    parts = [("Q6_K", (208, 1280)), ("Q8_0", (96, 1280)), ("Q4_K", (48, 1280)), ("BF16", (80, 1280))]
    weights = [weight(name, shape, seed) for seed, (name, shape) in enumerate(parts)]
    norm = np.random.default_rng(3).uniform(0.5, 1.5, 1280).astype(np.float32)
    scale = guarded(norm.shape, np.float32, norm)
    for seed in range(8):
        x = inputs(tokens, 1280, seed)
        outs = [guarded((tokens, w.shape[0]), np.float32) for w, _ in weights]
        gemv(guarded(x.shape, np.float32, x), [w for w, _ in weights], outs, STORE, (scale, EPS))
        for (_, dense), out in zip(weights, outs, strict=True):
            assert nmse(out, normed(x, norm) @ dense.T) < ROUNDED


@pytest.mark.parametrize("tokens", [1, 4, 16])
@pytest.mark.parametrize(
    "names",
    [
        ("Q4_K", "Q4_K"),
        ("Q6_K", "Q4_K"),
        ("Q8_0", "Q8_0"),
        ("IQ3_S", "Q3_K"),
        ("Q3_K", "Q3_K"),
        ("IQ4_XS", "IQ4_NL"),
        ("Q5_0", "Q4_1"),
    ],
)
def test_swiglu(tokens: int, names: tuple[str, str], guarded: Any) -> None:
    (gate, g), (up, u) = (weight(name, (200, 1280), seed) for seed, name in enumerate(names))
    x, norm = inputs(tokens, 1280), np.random.default_rng(3).uniform(0.5, 1.5, 1280).astype(np.float32)
    out = guarded((tokens, 200), np.uint16)
    gemv(guarded(x.shape, np.float32, x), [gate, up], [out], SWIGLU, (guarded(norm.shape, np.float32, norm), EPS))
    a, b = normed(x, norm) @ g.T, normed(x, norm) @ u.T
    assert nmse(out, a / (1 + np.exp(-a)) * b) < ROUNDED


@pytest.mark.parametrize("name", ["Q4_K", *ADDED])
def test_extreme_inputs(name: str, guarded: Any) -> None:
    """Zeros, and a few values far from one; a scale times a value is a normal float32."""
    w, dense = weight(name, (200, 1280))
    zeros = product(guarded, np.zeros((1, 1280), np.float32), w, np.float32)
    assert bool((zeros == 0).all())
    for size in (1e-20, 1e20):
        x = np.zeros((1, 1280), np.float32)
        x[0, 700] = size
        x[0, 3] = -size / 3
        assert nmse(product(guarded, x, w, np.float32) / size, to_float64(to_bf16(x)) @ dense.T / size) < 1e-7


@pytest.mark.no_sanitizer  # it waits for every launch
def test_a_captured_launch_repeats(guarded: Any) -> None:
    w, _ = weight("Q4_K", (200, 1280))
    x, out = cupy.asarray(to_bf16(inputs(1, 1280))), cupy.empty((1, 200), np.float32)
    gemv(x, [w], [out], STORE)
    want = out.copy()
    graph = capture(lambda: gemv(x, [w], [out], STORE))
    out.fill(np.nan)
    graph.replay()
    assert bool((out == want).all())


def test_more_tokens_than_fit_go_in_passes(guarded: Any) -> None:
    w, dense = weight("Q4_K", (200, 1280))
    x = inputs(37, 1280)
    assert nmse(product(guarded, x, w, np.float32), to_float64(to_bf16(x)) @ dense.T) < 1e-7


@pytest.mark.parametrize("layout", [Layout(6, 2), Layout(4, 3), Layout(8, 2), Layout(16, 1)])
def test_layouts(layout: Layout, guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several in a row, each launched while the one before is at work, and all to the bit as one alone."""
    monkeypatch.setitem(module.LAYOUTS, 1, (layout,))
    monkeypatch.setattr(module, "_first", lambda *product: ())
    module._variant.cache_clear()
    w, dense = weight("Q4_K", (1536, 1280))
    x = inputs(1, 1280)
    want = to_float64(to_bf16(x)) @ dense.T
    alone = product(guarded, x, w, np.float32)
    given, outs = guarded(x.shape, np.uint16, to_bf16(x)), [guarded((1, 1536), np.float32) for _ in range(8)]
    for out in outs:
        gemv(given, [w], [out], STORE)
    module._variant.cache_clear()
    assert nmse(alone, want) < 1e-7
    assert all(bool((out == alone).all()) for out in outs)


def test_a_chain_waits_for_its_inputs(guarded: Any) -> None:
    """x += f(x) W, again and again: every launch reads what the one before wrote."""
    (w, dense), (gate, g), (up, u) = (
        weight("Q4_K", (256, 512)),
        weight("Q4_K", (512, 256)),
        weight("Q6_K", (512, 256), 1),
    )
    x, norm = inputs(1, 256), np.ones(256, np.float32)
    stream, scale = guarded(x.shape, np.float32, x), guarded(norm.shape, np.float32, norm)
    middle, want = guarded((1, 512), np.uint16), x.astype(np.float64)
    for _ in range(6):
        gemv(stream, [gate, up], [middle], SWIGLU, (scale, EPS))
        gemv(middle, [w], [stream], ADD)
        a, b = normed(want, norm) @ g.T, normed(want, norm) @ u.T
        want = want + to_float64(to_bf16((a / (1 + np.exp(-a)) * b).astype(np.float32))) @ dense.T
    assert nmse(stream, want) < ROUNDED


def test_what_fits_is_known() -> None:
    assert held(1, 17408, (12,), False, ADD) == 1
    assert held(8, 17408, (12,), False, ADD) < 8
    assert held(100, 1024, (12,), False, ADD) == 16
