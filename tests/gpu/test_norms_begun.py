"""Norms begun by the product before, on Hopper: tiles and squares of `Ready`, and what products make of them.

Against float64. The stream holds outliers of 1e3 to 1e4, as residual streams of large models do. Bounds on the NMSE:
products are exact to 1e-7, inputs are f16 of the stream times the norm's weight, 2e-7 (of a single token, which one
value can make, 2^-22), and BF16 results add 4e-6.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np
import pytest
from bounds import within
from captured import capture
from compare import by_column, nmse, to_bf16, to_float64

from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.models import load_model, prefill
from sp.models.run.tree import TreeReader
from sp.ops import norms
from sp.ops.input_tiles import InputTiles, empty_tiles, size_scales
from sp.ops.matmul import project as projects
from sp.ops.matmul.chaining import begun_by
from sp.ops.matmul.gemm_small_m_sm90 import gemm_small_m_sm90, held_for
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.project import gated_project, project, project_add_before
from sp.ops.norms import Ready
from sp.quant import format_by_name
from sp.session.loaded import embedded

pytestmark = pytest.mark.skipif(native_path() != "sm_90a", reason="needs compute capability 9.0")
EPS, EXACT, TILES, ONE, ROUNDED = 1e-6, 1e-7, 2e-7, 3e-7, 5e-6


@cache
def weight(name: str, shape: tuple[int, int], seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    fmt, distinct = format_by_name(name), min(shape[0], 192)
    some = np.random.default_rng(seed).standard_normal((distinct, shape[1])).astype(np.float32) * 0.02
    packed = np.resize(fmt.encode(some), (shape[0], fmt.row_bytes(shape[1])))
    return pack(name, fmt, shape, cupy.asarray(packed)), np.resize(fmt.decode(packed[:distinct]), shape)


def stream_of(tokens: int, hidden: int, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, hidden)).astype(np.float32)
    x[:, loud_of(tokens, hidden)] *= 3000
    x[0] *= np.float32(0.1)
    return x * np.float32(size)


def loud_of(tokens: int, hidden: int) -> np.ndarray:
    """The columns of a stream that hold its outliers."""
    return np.unique(np.random.default_rng([tokens, hidden]).integers(0, hidden, 3))


def norm_of(hidden: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 3, hidden).astype(np.float32)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=1, keepdims=True) + EPS) * weight


def poison(ready: Ready) -> Ready:
    ready.tiles.data.fill(0xFF)
    ready.tiles.squares.fill(np.nan)
    return ready


def begun(guarded: Any, x: np.ndarray, norm: np.ndarray) -> tuple[Any, Ready]:
    """x as an ADD of nothing leaves it, with its norm begun."""
    nothing = cupy.zeros((len(x), 256), np.uint16)
    stream = guarded(x.shape, np.float32, x)
    ready = poison(Ready.empty(stream, (guarded(norm.shape, np.float32, norm), EPS), held_for(len(x))))
    gemm_small_m_sm90(nothing, [weight("Q4_K", (x.shape[1], 256))[0]], [stream], ADD, then=ready)
    return stream, ready


@pytest.mark.parametrize("tokens", [5, 8, 9, 16, 17, 23, 24, 32, 33, 40, 47, 48, 63, 64])
@pytest.mark.parametrize(("name", "shape"), [("Q4_K", (5120, 6144)), ("Q6_K", (5120, 17408)), ("Q4_K", (256, 768))])
def test_what_is_left_for_the_next_product(tokens: int, name: str, shape: tuple[int, int], guarded: Any) -> None:
    (w, dense), hidden = weight(name, shape), shape[0]
    x, h = stream_of(tokens, hidden), np.random.default_rng(1).standard_normal((tokens, shape[1])).astype(np.float32)
    norm, seen = norm_of(hidden), []
    given = guarded(norm.shape, np.float32, norm), EPS
    for _ in range(2):
        stream = guarded(x.shape, np.float32, x)
        ready = poison(Ready.empty(stream, given, held_for(tokens)))
        gemm_small_m_sm90(guarded(h.shape, np.uint16, to_bf16(h)), [w], [stream], ADD, then=ready)
        seen.append((stream.get(), ready.tiles.values(), ready.tiles.means(), ready.tiles.squares.get()))
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=True)), "a rerun differs"
    found, values, means, squares = seen[0]
    loud = loud_of(tokens, hidden)
    quiet, loudly = by_column(found, x + to_float64(to_bf16(h)) @ dense.T, loud)
    within("quiet columns of x + h W", quiet)
    within("loud columns of x + h W", loudly)
    want = found.astype(np.float64) * norm
    assert np.abs(values - want).max() <= np.abs(want).max() * 2.0**-11
    quiet, loudly = by_column(values, want, loud)
    within("quiet columns of a begun norm", quiet)
    within("loud columns of a begun norm", loudly)
    sums = (
        values.reshape(tokens, -1, 16).mean(axis=2),
        (found.astype(np.float64) ** 2).reshape(tokens, -1, 16).sum(axis=2),
    )
    for got, exact, bound in zip((means, squares), sums, (1e-10, 1e-12), strict=True):
        assert max(by_column(got, exact, np.unique(loud // 16))) < bound


@pytest.mark.parametrize(("size", "bound"), [(3e-5, 5e-5), (1e-2, TILES), (1.0, TILES), (30.0, TILES)])
@pytest.mark.parametrize("tokens", [9, 16, 17, 23, 32, 33, 48, 63, 64])
def test_products_finish_the_norm(tokens: int, size: float, bound: float, guarded: Any) -> None:
    """At 3e-5 `eps` counts and tiles begin to lose what they hold; formats, small weights, forms of results."""
    hidden = 1280
    x, norm = stream_of(tokens, hidden, size), norm_of(hidden)
    _, ready = begun(guarded, x, norm)
    want = normed(x, norm)
    parts = [weight("Q6_K", (1040, hidden), 1), weight("Q4_K", (48, hidden), 2), weight("Q4_K", (200, hidden), 3)]
    first: list[Any] = []
    for _ in range(2):
        outs = [guarded((tokens, w.shape[0]), dt) for (w, _), dt in zip(parts, "fHf", strict=True)]
        gemm_small_m_sm90(ready.tiles, [w for w, _ in parts], outs, STORE)
        first = first or outs
        assert all(bool((a == b).all()) for a, b in zip(first, outs, strict=True)), "a rerun differs"
        for (_, dense), out in zip(parts, outs, strict=True):
            assert nmse(out, want @ dense.T) < bound + (0 if out.dtype == np.float32 else ROUNDED)
    (gate, g), (up, u) = weight("Q4_K", (512, hidden), 4), weight("Q4_K", (512, hidden), 5)
    a, b = want @ g.T, want @ u.T
    wide, tiles = guarded((tokens, 512), np.uint16), empty_tiles(tokens, 512, held_for(tokens))
    gemm_small_m_sm90(ready.tiles, [gate, up], [wide], SWIGLU)
    gemm_small_m_sm90(ready.tiles, [gate, up], [tiles], SWIGLU)
    silu = a / (1 + np.exp(-a)) * b
    assert nmse(wide, silu) < 4 * bound + ROUNDED
    assert nmse(tiles.values(), silu) < 4 * bound


@pytest.mark.parametrize("tokens", [5, 16, 23, 32, 33, 48, 64])
def test_a_stream_of_small_and_large_tokens(tokens: int, guarded: Any) -> None:
    """Tiles take their scales from what the stream was before; a token keeps its bits, whatever stands beside it."""
    (w, dense), hidden = weight("Q4_K", (1280, 768), 13), 1280
    (reader, read), (gate, g), (up, u) = (weight("Q6_K", (512, hidden), 14 + i) for i in range(3))
    sizes = np.random.default_rng(5).permutation(np.float32(10.0) ** np.linspace(-3, 7, tokens, dtype=np.float32))
    x, norm = stream_of(tokens, hidden) * sizes[:, None], norm_of(hidden)
    h = np.random.default_rng(1).standard_normal((tokens, 768)).astype(np.float32) * sizes[:, None]
    h[0] *= 1000  # this one grows
    stream, before = begun(guarded, x, norm)
    squares = before.tiles.squares.get().sum(axis=1) / np.float32(hidden)
    ready = poison(Ready.empty(stream, before.norm, held_for(tokens)))
    gemm_small_m_sm90(guarded(h.shape, np.uint16, to_bf16(h)), [w], [stream], ADD, then=ready, before=before)
    found = stream.get().astype(np.float64)
    np.testing.assert_array_equal(ready.tiles.scales(), size_scales(squares))
    out, wide = guarded((tokens, 512), np.float32), guarded((tokens, 512), np.uint16)
    gemm_small_m_sm90(ready.tiles, [reader], [out], STORE)
    gemm_small_m_sm90(ready.tiles, [gate, up], [wide], SWIGLU)
    values, finished = ready.tiles.values(), normed(found, norm)
    sums, a, b = finished @ read.T, finished @ g.T, finished @ u.T
    silu = a / (1 + np.exp(-np.clip(a, -700, 700))) * b
    for t in range(tokens):
        assert nmse(found[t], x[t] + to_float64(to_bf16(h[t])) @ dense.T) < EXACT, f"token {t}"
        assert nmse(values[t], found[t] * norm) < ONE, f"token {t}"
        assert nmse(out.get()[t], sums[t]) < ONE, f"token {t}"
        assert nmse(wide[t], silu[t]) < 4 * ONE + 2 * ROUNDED, f"token {t}"  # gate and up are rounded too


@pytest.mark.no_sanitizer  # there every launch is waited for
@pytest.mark.parametrize("tokens", [9, 16, 17, 23, 32, 33, 48, 63, 64])
def test_a_layer(tokens: int, guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """out, gate and up, down, and what the next layer starts with, as models call them; again; and as a graph."""
    hidden, ffn, inner = 1024, 2048, 768
    out, gate, up = (
        weight("Q4_K", shape, 6 + i) for i, shape in enumerate([(hidden, inner), (ffn, hidden), (ffn, hidden)])
    )
    down, head = weight("Q6_K", (hidden, ffn), 9), (weight("Q6_K", (640, hidden), 10), weight("Q8_0", (48, hidden), 11))
    x, h = stream_of(tokens, hidden), np.random.default_rng(1).standard_normal((tokens, inner)).astype(np.float32)
    one, two = norm_of(hidden, 1), norm_of(hidden, 2)
    first, second = ((guarded(v.shape, np.float32, v), EPS) for v in (one, two))
    stream, given = guarded(x.shape, np.float32, x), guarded(h.shape, np.uint16, to_bf16(h))
    results = [cupy.empty((tokens, w.shape[0]), np.float32) for w, _ in head]
    monkeypatch.setattr(norms, "empty_tiles", lambda *sizes: _dirty(empty_tiles(*sizes)))

    def layer() -> None:
        y, norm = project_add_before(stream, given, out[0], first)
        assert y is stream
        assert isinstance(norm, Ready)
        y, norm = project_add_before(stream, gated_project(stream, gate[0], up[0], norm, down[0]), down[0], second)
        assert isinstance(norm, Ready)
        for to, made in zip(results, project(stream, [w for w, _ in head], norm, f32=(True, True)), strict=True):
            to[...] = made

    layer()
    want = x + to_float64(to_bf16(h)) @ out[1].T
    a, b = normed(want, one) @ gate[1].T, normed(want, one) @ up[1].T
    want = want + (a / (1 + np.exp(-a)) * b) @ down[1].T
    quiet, loudly = by_column(stream, want, loud_of(tokens, hidden))
    within("quiet columns of a layer", quiet)
    within("loud columns of a layer", loudly)
    for (_, dense), found, bound in zip(head, results, (1e-6, 2e-5), strict=True):  # Q8_0 takes a norm in BF16
        assert nmse(found, normed(want, two) @ dense.T) < bound
    kept = [stream.copy(), *(found.copy() for found in results)]
    graph = capture(layer)
    for _ in range(3):
        stream[...] = cupy.asarray(x)
        for found in results:
            found.fill(np.nan)
        graph.replay()
        assert all(bool((a == b).all()) for a, b in zip(kept, [stream, *results], strict=True))


def _dirty(tiles: InputTiles) -> InputTiles:
    tiles.data.fill(0xFF)
    return tiles


def test_where_a_norm_cannot_be_begun(guarded: Any) -> None:
    """Other row counts, formats and widths: the norm comes back as it was given."""
    norm = cupy.ones(512, np.float32), EPS
    for tokens, name, rows in ((1, "Q4_K", 512), (65, "Q4_K", 512), (16, "Q8_0", 512), (16, "Q4_K", 200)):
        w, dense = weight(name, (rows, 512))
        h = np.random.default_rng(0).standard_normal((tokens, 512)).astype(np.float32)
        stream = guarded((tokens, rows), np.float32, np.zeros((tokens, rows), np.float32))
        _, after = project_add_before(stream, cupy.asarray(to_bf16(h)), w, norm)
        assert after is norm
        assert nmse(stream, to_float64(to_bf16(h)) @ dense.T) < 5e-5


@pytest.mark.parametrize("nodes", [5, 9, 16, 23, 32, 33, 47, 64])
def test_a_pass_of_a_whole_model(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = load_model(embedded("target"), device="cuda"), np.arange(40, 240)
    count: list[Ready | None] = []

    def counted(*given: Any) -> Ready | None:
        count.append(begun_by(*given))
        return count[-1]

    def logits(begins: Any) -> np.ndarray:
        monkeypatch.setattr(projects, "begun_by", begins)
        cache = model.new_cache(len(ids) + nodes)
        prefill(model, ids, np.arange(len(ids)), cache)
        chain = np.arange(nodes)
        found: np.ndarray = TreeReader(model, cache).read_tree(ids[:nodes], chain - 1, len(ids) + chain).logits.get()
        return found

    fused, plain = logits(counted), logits(lambda *given: None)
    assert sum(ready is not None for ready in count) == 2 * model.config.layers
    print(f"{nodes} nodes: logits nmse {nmse(fused, plain):.2e}")
    assert nmse(fused, plain) < 2e-4


@pytest.mark.parametrize("tokens", [16, 33, 64])
def test_logits_of_a_large_vocabulary(tokens: int, guarded: Any) -> None:
    """Above 32 tokens most row tiles have one worker, which writes them itself."""
    hidden, rows = 512, (1 << 16) + 200
    x, norm = stream_of(tokens, hidden), norm_of(hidden)
    stream, ready = begun(guarded, x, norm)
    w, dense = weight("Q6_K", (rows, hidden), 12)
    found = project(stream, (w,), ready, f32=(True,))[0]
    want = np.resize((normed(x, norm) @ dense[:192].T).T, (rows, tokens)).T
    assert nmse(found, want) < TILES
