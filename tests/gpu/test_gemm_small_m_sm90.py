"""The Hopper kernel for few tokens against float64: formats, epilogues, tokens, divisions, with guards and NaN around.

Bounds on the NMSE: products are exact up to float32 sums (1e-7; weights of Q6_K and IQ4_XS are rounded to 11 bits), for
the inputs as tiles hold them, which are BF16 inputs to within 2^-19; BF16 results add one rounding (4e-6), SwiGLU of
them too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np
import pytest
from captured import capture
from compare import nmse, to_bf16, to_float64
from file_rows import file_rows

from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.ops.input_tiles import InputTiles, empty_tiles, largest_scales
from sp.ops.matmul import gemm_small_m_sm90 as module
from sp.ops.matmul.gemm_small_m_sm90 import gemm_small_m_sm90, held_for
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import format_by_name

pytestmark = pytest.mark.skipif(native_path() != "sm_90a", reason="needs compute capability 9.0")
NAMES = ["Q4_K", "Q5_K", "Q6_K", "Q3_K", "IQ4_XS", "IQ3_S"]
EXACT, ROUNDED = 1e-7, 4e-6


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
    x[:, rng.integers(0, k, 4)] *= 500
    return x


def sizes(tokens: int) -> np.ndarray:
    """Of tokens that differ by 10^12."""
    return np.random.default_rng(3).permutation(np.float32(10.0) ** np.linspace(-6, 6, tokens, dtype=np.float32))


def times(x: np.ndarray, dense: np.ndarray, rows: int) -> np.ndarray:
    """The product in float64, of inputs as the kernel is given them."""
    some = to_float64(to_bf16(x)) @ dense.T
    return np.resize(some.T, (rows, len(x))).T


def poisoned(tokens: int, width: int) -> InputTiles:
    """Tiles full of NaN."""
    tiles = empty_tiles(tokens, width, held_for(tokens))
    tiles.data.fill(0xFF)
    return tiles


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[InputTiles]:
    """The tiles that products make of their inputs, poisoned before."""
    made: list[InputTiles] = []

    def empty(tokens: int, width: int, held: int) -> InputTiles:
        made.append(poisoned(tokens, width))
        return made[-1]

    monkeypatch.setattr(module, "empty_tiles", empty)
    return made


def product(guarded: Any, x: np.ndarray, w: PackedWeight, dtype: Any) -> Any:
    out = guarded((len(x), w.shape[0]), dtype)
    gemm_small_m_sm90(guarded(x.shape, np.uint16, to_bf16(x)), [w], [out], STORE)
    return out


@pytest.mark.parametrize(
    ("tokens", "k"), [(16, 5120), (5, 1024), (9, 256), (23, 1280), (32, 17408), (33, 1280), (64, 17408)]
)
def test_tiles(tokens: int, k: int, guarded: Any, tiles: list[InputTiles]) -> None:
    x = inputs(tokens, k) * sizes(tokens)[:, None]
    x[0, :3] = 5e6, -5e6, 1e-3
    given = to_float64(to_bf16(x))
    product(guarded, x, weight("Q4_K", (48, k))[0], np.float32)
    scales = tiles[0].scales()
    np.testing.assert_array_equal(scales, largest_scales(given.astype(np.float32)))
    values = tiles[0].values()
    assert (np.abs(values - given) <= scales[:, None] * 2.0**-25).all(), "BF16 has fewer bits than f16"
    groups = values.reshape(tokens, -1, 16)
    assert (np.abs(tiles[0].means() - groups.mean(axis=2)).max(axis=1) <= np.abs(values).max(axis=1) * 2.0**-21).all()


@pytest.mark.parametrize("tokens", [8, 16, 19, 32, 33, 64])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_all_sizes(name: str, tokens: int, guarded: Any) -> None:
    """Each token keeps its bits, whatever stands beside it."""
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280) * sizes(tokens)[:, None]
    found, want = product(guarded, x, w, np.float32).get(), times(x, dense, 200)
    for token in range(tokens):
        assert nmse(found[token], want[token]) < EXACT, f"token {token}"


@pytest.mark.parametrize("tokens", [7, 9, 19, 32, 33, 63])
@pytest.mark.parametrize(("name", "shape"), [("Q4_K", (17408, 5120)), ("Q6_K", (48, 5120)), ("Q4_K", (200, 256))])
def test_norm(tokens: int, name: str, shape: tuple[int, int], guarded: Any, tiles: list[InputTiles]) -> None:
    (w, dense), x = weight(name, shape), inputs(tokens, shape[1])
    norm = np.linspace(-2, 2, shape[1], dtype=np.float32)
    given = guarded(x.shape, np.float32, x), (guarded(norm.shape, np.float32, norm), 1e-6)
    first = None
    for _ in range(3):
        out = guarded((tokens, shape[0]), np.float32)
        gemm_small_m_sm90(given[0], [w], [out], STORE, given[1])
        first = out if first is None else first
        assert bool((first == out).all())
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * norm
    assert nmse(tiles[0].values(), want) < EXACT
    assert nmse(tiles[0].means(), tiles[0].values().reshape(tokens, -1, 16).mean(axis=2)) < 1e-10
    assert nmse(first, np.resize((want @ dense.T).T, (shape[0], tokens)).T) < EXACT


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [2, 8, 9, 16, 23, 24, 31, 32, 33, 40, 47, 48, 55, 63, 64])
def test_formats(name: str, tokens: int, guarded: Any) -> None:
    w, dense = weight(name, (200, 1280))
    x = inputs(tokens, 1280)
    want = times(x, dense, 200)
    wide = product(guarded, x, w, np.float32)
    assert nmse(wide, want) < EXACT
    assert nmse(product(guarded, x, w, np.uint16), want) < ROUNDED
    for _ in range(3):
        assert bool((product(guarded, x, w, np.float32) == wide).all()), "a rerun differs"


@pytest.mark.parametrize("tokens", [8, 16, 23, 32, 40, 47, 56, 64])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Q4_K", (8, 256)),
        ("Q4_K", (48, 5120)),
        ("Q4_K", (5120, 6144)),
        ("Q4_K", (17408, 5120)),
        ("Q6_K", (10240, 5120)),
        ("Q6_K", (5120, 17408)),
        ("Q4_K", (5120, 17408)),
        ("IQ4_XS", (5120, 17408)),
        ("Q3_K", (17408, 5120)),
        ("IQ3_S", (104, 2816)),
        ("Q5_K", (3072, 1024)),
    ],
)
def test_shapes(name: str, shape: tuple[int, int], tokens: int, guarded: Any) -> None:
    """Of the 27B model, and small odd ones."""
    w, dense = weight(name, shape)
    x = inputs(tokens, shape[1])
    assert nmse(product(guarded, x, w, np.float32), times(x, dense, shape[0])) < EXACT


@pytest.mark.parametrize("tokens", [5, 9, 24, 32, 33, 48, 63, 64])
@pytest.mark.parametrize(
    ("name", "shape"), [("Q4_K", (200, 1280)), ("Q6_K", (640, 17408)), ("IQ4_XS", (640, 2560)), ("Q3_K", (200, 1280))]
)
def test_residual_add(tokens: int, name: str, shape: tuple[int, int], guarded: Any) -> None:
    w, dense = weight(name, shape)
    x = inputs(tokens, shape[1])
    residual = np.random.default_rng(2).standard_normal((tokens, shape[0])).astype(np.float32)
    want = residual + times(x, dense, shape[0])
    first = None
    for _ in range(2):
        stream = guarded(residual.shape, np.float32, residual)
        gemm_small_m_sm90(guarded(x.shape, np.uint16, to_bf16(x)), [w], [stream], ADD)
        assert nmse(stream, want) < EXACT
        first = stream if first is None else first
        assert bool((stream == first).all())


@pytest.mark.parametrize("tokens", [6, 9, 17, 32, 33, 48, 55, 64])
@pytest.mark.parametrize("names", [("Q6_K", "Q4_K", "Q4_K", "Q5_K"), ("Q3_K", "IQ4_XS", "IQ3_S", "Q5_K")])
def test_weights_of_several_formats(names: tuple[str, ...], tokens: int, guarded: Any) -> None:
    """As a recurrent layer has them, with small ones whose last tile is mostly padding."""
    shapes = [(1040, 1280), (608, 1280), (48, 1280), (8, 1280)]
    weights = [weight(name, shape, seed) for seed, (name, shape) in enumerate(zip(names, shapes, strict=True))]
    x = inputs(tokens, 1280)
    outs = [guarded((tokens, w.shape[0]), dt) for (w, _), dt in zip(weights, "HHff", strict=True)]
    gemm_small_m_sm90(guarded(x.shape, np.uint16, to_bf16(x)), [w for w, _ in weights], outs, STORE)
    for (_, dense), out in zip(weights, outs, strict=True):
        assert nmse(out, times(x, dense, out.shape[1])) < ROUNDED


@pytest.mark.parametrize("tokens", [5, 9, 24, 32, 33, 48, 63, 64])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Q4_K", (200, 1280)),
        ("Q6_K", (17408, 256)),
        ("Q4_K", (3072, 1024)),
        ("Q3_K", (200, 1280)),
        ("IQ3_S", (1024, 256)),
        ("IQ4_XS", (200, 1280)),
    ],
)
def test_swiglu(tokens: int, name: str, shape: tuple[int, int], guarded: Any) -> None:
    (gate, g), (up, u) = (weight(name, shape, seed) for seed in range(2))
    x = inputs(tokens, shape[1])
    out = guarded((tokens, shape[0]), np.uint16)
    gemm_small_m_sm90(guarded(x.shape, np.uint16, to_bf16(x)), [gate, up], [out], SWIGLU)
    a, b = (times(x, dense, shape[0]) for dense in (g, u))
    want = a / (1 + np.exp(-np.clip(a, -700, 700))) * b
    assert nmse(out, want) < ROUNDED
    if shape[0] % 256:
        return
    made = poisoned(tokens, shape[0])
    gemm_small_m_sm90(guarded(x.shape, np.uint16, to_bf16(x)), [gate, up], [made], SWIGLU)
    assert nmse(made.values(), want) < EXACT
    assert nmse(made.means(), made.values().reshape(tokens, -1, 16).mean(axis=2)) < 1e-10


@pytest.mark.parametrize("tokens", [19, 63])
@pytest.mark.parametrize("processors", [1, 3, 20, 64])
def test_every_division_is_right(processors: int, tokens: int, guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer multiprocessors divide the work otherwise; some workers have nothing to do, some several items."""
    w, dense = weight("Q4_K", (456, 2560))
    x = inputs(tokens, 2560)
    monkeypatch.setattr(module, "_plan", lambda *given: module.plan_of(*given[:5], processors))
    assert nmse(product(guarded, x, w, np.float32), times(x, dense, w.shape[0])) < EXACT


@pytest.mark.parametrize("tokens", [16, 63])
def test_a_chain_waits_for_its_inputs(tokens: int, guarded: Any) -> None:
    """x += f(x) W, again and again, also as a graph: every launch reads what the one before wrote."""
    (down, dense), (gate, g), (up, u) = (
        weight("Q4_K", (256, 2048)),
        weight("Q6_K", (2048, 256)),
        weight("Q6_K", (2048, 256), 1),
    )
    x, ones = inputs(tokens, 256) * 0.1, cupy.ones(256, np.float32)
    stream, steps = guarded(x.shape, np.float32, x), 6

    def chain() -> None:
        for _ in range(steps):
            middle = poisoned(tokens, 2048)
            gemm_small_m_sm90(stream, [gate, up], [middle], SWIGLU, (ones, 1e-6))
            gemm_small_m_sm90(middle, [down], [stream], ADD)

    chain()
    want = x.astype(np.float64)
    for _ in range(steps):
        h = want / np.sqrt((want**2).mean(axis=1, keepdims=True) + 1e-6)
        a, b = (np.resize((h @ v.T).T, (2048, tokens)).T for v in (g, u))
        want = want + (a / (1 + np.exp(-a)) * b) @ dense.T  # 256 rows, all distinct
    assert nmse(stream, want) < ROUNDED
    once = stream.copy()
    graph = capture(chain)
    for _ in range(2):
        stream[...] = cupy.asarray(x)
        graph.replay()
        assert bool((stream == once).all())


def test_what_does_not_match_is_refused(guarded: Any) -> None:
    (gate, _), (up, _) = weight("Q4_K", (200, 1280)), weight("Q6_K", (200, 1280))
    with pytest.raises(DeviceError, match="only when alike"):
        gemm_small_m_sm90(poisoned(9, 1280), [gate, up], [cupy.empty((9, 200), np.uint16)], SWIGLU)
