"""The kernel for 9 to 64 tokens against float64: formats, epilogues, tokens and shapes, with guards and NaN all round.

Bounds on the NMSE: float32 results of BF16 inputs are exact up to float32 sums and to sums of inputs held as two bf16
(1e-7; F16 weights are rounded to BF16, 1e-5). BF16 results add one rounding (4e-6), SwiGLU of them too.
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

from sp.errors import DeviceError
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.ops.matmul import gemm_small_m as module
from sp.ops.matmul.gemm_small_m import fits, gemm_small_m
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import format_by_name

ADDED = [fmt.name for fmt in NEW]
NAMES = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "BF16", "F16", *ADDED]
EXACT = {"F16": 1e-5}
ROUNDED = 4e-6
TOKENS = [9, 15, 16, 17, 23, 31, 32, 33, 63, 64]


@cache
def weight(name: str, shape: tuple[int, int], seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    """A weight and the values of its distinct rows, up to 320, which repeat: it is quantised on the host."""
    fmt, distinct = format_by_name(name), min(shape[0], 320)
    some = np.random.default_rng(seed).standard_normal((distinct, shape[1])).astype(np.float32) * 0.05
    packed = np.resize(file_rows(fmt, some), (shape[0], fmt.row_bytes(shape[1])))
    dense = fmt.decode(packed[:distinct]).astype(np.float64)
    return pack(name, fmt, shape, cupy.asarray(packed)), dense


def inputs(tokens: int, k: int, seed: int = 1) -> np.ndarray:
    """Normal values, some far out, as real activations have them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    x[:, rng.integers(0, k, 4)] *= 50
    return x


def times(x: np.ndarray, dense: np.ndarray, rows: int) -> np.ndarray:
    """The product in float64, of inputs as the kernel is given them."""
    some = to_float64(to_bf16(x)) @ dense.T
    return np.resize(some.T, (rows, len(x))).T


def product(guarded: Any, x: np.ndarray, w: PackedWeight, dtype: Any) -> Any:
    out = guarded((len(x), w.shape[0]), dtype)
    gemm_small_m(guarded(x.shape, np.uint16, to_bf16(x)), [w], [out], STORE)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [16, 24, 32])
def test_formats(name: str, tokens: int, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    want = times(x, dense, 200)
    wide = product(guarded, x, w, np.float32)
    assert nmse(wide, want) < EXACT.get(name, 1e-7)
    assert nmse(product(guarded, x, w, np.uint16), want) < EXACT.get(name, ROUNDED)
    for _ in range(3):
        assert bool((product(guarded, x, w, np.float32) == wide).all()), "a rerun differs"


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "Q3_K", "IQ4_XS", "IQ3_S", "Q4_1", "IQ4_NL"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_tokens(name: str, tokens: int, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    assert nmse(product(guarded, x, w, np.float32), times(x, dense, w.shape[0])) < 1e-7


@pytest.mark.parametrize("tokens", [16, 23, 64])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Q4_K", (8, 256)),
        ("Q4_K", (48, 5120)),
        ("Q4_K", (5120, 6144)),
        ("Q4_K", (17408, 5120)),
        ("Q6_K", (10240, 5120)),
        ("Q6_K", (5120, 17408)),
        ("Q4_K", (3072, 1024)),
        ("Q8_0", (80, 192)),
        ("BF16", (1024, 3072)),
        ("BF16", (152, 64)),
        ("Q3_K", (17408, 5120)),
        ("IQ4_XS", (5120, 17408)),
        ("IQ3_S", (104, 2816)),
        ("IQ4_NL", (5120, 17408)),
        ("Q4_1", (88, 320)),
        ("Q5_0", (1024, 896)),
        ("Q5_1", (152, 64)),
        ("MXFP4", (40, 192)),
    ],
)
def test_shapes(name: str, shape: tuple[int, int], tokens: int, guarded: Any) -> None:
    """Of the 27B model, of the drafter, and small odd ones."""
    w, dense = weight(name, shape)
    x = inputs(tokens, shape[1])
    assert nmse(product(guarded, x, w, np.float32), times(x, dense, shape[0])) < 1e-7


@pytest.mark.parametrize("tokens", [9, 32, 40])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("Q4_K", (200, 1280)), ("Q8_0", (200, 1280)), ("Q6_K", (640, 17408)), *((name, (200, 1280)) for name in ADDED)],
)
def test_residual_add(tokens: int, name: str, shape: tuple[int, int], guarded: Any) -> None:
    w, dense = weight(name, shape)
    x = inputs(tokens, shape[1])
    residual = np.random.default_rng(2).standard_normal((tokens, shape[0])).astype(np.float32)
    want = residual + times(x, dense, shape[0])
    first = None
    for _ in range(2):
        stream = guarded(residual.shape, np.float32, residual)
        gemm_small_m(guarded(x.shape, np.uint16, to_bf16(x)), [w], [stream], ADD)
        assert nmse(stream, want) < 1e-7
        first = stream if first is None else first
        assert bool((stream == first).all())


@pytest.mark.parametrize("tokens", [9, 17, 32, 64])
@pytest.mark.parametrize(
    "names",
    [
        ("Q6_K", "Q4_K", "Q4_K", "Q5_K"),
        ("Q3_K", "IQ4_XS", "IQ3_S", "Q5_K"),
        ("IQ4_NL", "Q5_1", "Q8_0", "Q5_0"),
        ("MXFP4", "Q4_1", "Q4_0", "BF16"),
    ],
)
def test_weights_of_several_formats(names: tuple[str, ...], tokens: int, guarded: Any) -> None:
    """As a recurrent layer has them, with small ones whose last tile is mostly padding."""
    shapes = [(1040, 1280), (608, 1280), (48, 1280), (8, 1280)]
    weights = [weight(name, shape, seed) for seed, (name, shape) in enumerate(zip(names, shapes, strict=True))]
    x = inputs(tokens, 1280)
    outs = [guarded((tokens, w.shape[0]), dt) for (w, _), dt in zip(weights, "HHff", strict=True)]
    gemm_small_m(guarded(x.shape, np.uint16, to_bf16(x)), [w for w, _ in weights], outs, STORE)
    for (_, dense), out in zip(weights, outs, strict=True):
        assert nmse(out, times(x, dense, out.shape[1])) < ROUNDED


@pytest.mark.parametrize("tokens", [9, 24, 64])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Q4_K", (200, 1280)),
        ("Q6_K", (17408, 256)),
        ("Q8_0", (200, 1280)),
        ("BF16", (3072, 1024)),
        *((name, (200, 1280)) for name in ADDED),
    ],
)
def test_swiglu(tokens: int, name: str, shape: tuple[int, int], guarded: Any) -> None:
    (gate, g), (up, u) = (weight(name, shape, seed) for seed in range(2))
    x = inputs(tokens, shape[1])
    out = guarded((tokens, shape[0]), np.uint16)
    gemm_small_m(guarded(x.shape, np.uint16, to_bf16(x)), [gate, up], [out], SWIGLU)
    a, b = (times(x, dense, shape[0]) for dense in (g, u))
    assert nmse(out, a / (1 + np.exp(-np.clip(a, -700, 700))) * b) < ROUNDED


@pytest.mark.parametrize("processors", [1, 3, 20, 64])
def test_every_division_is_right(processors: int, guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of few multiprocessors and little shared memory divide otherwise."""
    w, dense = weight("Q4_K", (456, 2560))
    x = inputs(19, 2560)

    def plan(*given: Any) -> Any:
        return module.plan_of(*given[:-1], processors, 99 * 1024)

    monkeypatch.setattr(module, "_plan", plan)
    assert nmse(product(guarded, x, w, np.float32), times(x, dense, w.shape[0])) < 1e-7


def test_a_chain_waits_for_its_inputs(guarded: Any) -> None:
    """x += f(x) W, again and again, also as a graph: every launch reads what the one before wrote."""
    (down, dense), (gate, g), (up, u) = (
        weight("Q4_K", (256, 2048)),
        weight("Q6_K", (2048, 256)),
        weight("Q6_K", (2048, 256), 1),
    )
    x = inputs(16, 256) * 0.1
    given, middle = guarded(x.shape, np.uint16, to_bf16(x)), guarded((16, 2048), np.uint16)
    stream = guarded(x.shape, np.float32, x)

    def chain() -> None:
        for _ in range(6):
            gemm_small_m(given, [gate, up], [middle], SWIGLU)
            gemm_small_m(middle, [down], [stream], ADD)

    chain()
    a, b = (times(x, v, 2048) for v in (g, u))
    inner = to_float64(to_bf16((a / (1 + np.exp(-a)) * b).astype(np.float32)))
    want = x.astype(np.float64)
    for _ in range(6):
        want = want + inner @ dense.T  # 256 rows, all distinct
    assert nmse(stream, want) < ROUNDED
    once = stream.copy()
    graph = capture(chain)
    for _ in range(2):
        stream[...] = cupy.asarray(x)
        graph.replay()
        assert bool((stream == once).all())


def test_what_does_not_fit_or_match_is_refused(guarded: Any) -> None:
    assert fits(17408, (14,))
    (gate, _), (up, _) = weight("Q4_K", (200, 1280)), weight("Q6_K", (200, 1280))
    x, out = cupy.zeros((9, 1280), np.uint16), cupy.empty((9, 200), np.uint16)
    with pytest.raises(DeviceError, match="only when alike"):
        gemm_small_m(x, [gate, up], [out], SWIGLU)
