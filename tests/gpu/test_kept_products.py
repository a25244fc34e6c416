"""Weights that are kept rounded: the products, to the bit, of weights that are rounded anew; whole models in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pytest
from compare import nmse
from test_gemm_bytes import inputs, weight

from sp.kernels.device import current_device
from sp.kernels.launch import launched_sources, reset_launched
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.models import Model, load_model, prefill
from sp.models.device import prequantized as keeping
from sp.models.device.prequantized import drop_prequantized
from sp.models.run.graph import PrefillGraphs
from sp.ops.byte_rows.kept import kept_bytes, kept_together
from sp.ops.byte_rows.loud import _peaks, loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, ByteKind
from sp.ops.matmul.byte_weights import keep, loud_columns, round_weights
from sp.ops.matmul.packed import PackedWeight, unpack_bf16
from sp.ops.matmul.registry import MatmulKernel, Product, kernels
from sp.quant import Q4_K, Q6_K, Math, kernel_formats
from sp.session.loaded import embedded

KERNELS = [("gemm_bytes_sm90", Math.INT8), ("gemm_bytes_sm90", Math.FP8), ("gemm_bytes_portable", Math.INT8)]


@pytest.fixture(params=KERNELS, ids=["sm_90a-int8", "sm_90a-fp8", "portable-int8"])
def multiplied(request) -> tuple[MatmulKernel, Math]:
    name, precision = request.param
    if name == "gemm_bytes_sm90" and native_path() != "sm_90a":
        pytest.skip("needs compute capability 9.0")
    return next(one for one in kernels("sm_90a" if name.endswith("90") else "portable") if one.name == name), precision


def marked(weights: Sequence[PackedWeight], precision: Math) -> list[PackedWeight]:
    return [replace(w, math=precision) for w in weights]


def held(weights: Sequence[PackedWeight]) -> list[PackedWeight]:
    """Rounded together, as those of a layer are."""
    return [
        replace(w, kept=place) for w, place in zip(weights, keep(weights, BYTE_KINDS[weights[0].math]), strict=True)
    ]


@pytest.mark.parametrize("fmt", kernel_formats(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_kept_rows_are_those_rounded_anew(fmt, count: int) -> None:
    made = [weight(fmt, rows, 768, i) for i, rows in enumerate((72, 200, 64, 8, 128))]
    weights = held(marked([*made, weight(Q6_K, 64, 768, 9)], Math.INT8))
    loud = loud_channels(cupy.asarray(inputs(64, 768, count)))
    assert int(loud.count[0]) == count
    assert sum(a.nbytes for a in (weights[0].kept.rows.codes, weights[0].kept.rows.scales)) == kept_bytes(weights)
    for some in (weights, weights[:1], weights[1:]):
        got, want = kept_together(some), round_weights(some, ByteKind.INT8)
        assert got is not None
        assert got.rows == want.rows
        place = slice(got.first, got.first + got.rows)
        np.testing.assert_array_equal(got.scales[place].get(), want.scales.get())
        real = want.scales.get() > 0  # codes of rows that fill a tile are not written
        assert real.sum() == sum(w.shape[0] for w in some)
        np.testing.assert_array_equal(got.codes[place].get()[real], want.codes.get()[real])
        beside = loud_columns(some, loud).get()
        if count:
            columns = [unpack_bf16(w).get()[:, loud.channels.get()[:count]] for w in some]
            np.testing.assert_array_equal(beside[real, :count], np.concatenate(columns))
            assert not beside[:, count:].any()
    assert kept_together([weights[0], weights[2]]) is None, "one is between them"
    assert kept_together(weights[::-1]) is None
    assert kept_together([replace(weights[0], kept=None)]) is None


def made(kernel: MatmulKernel, x: Any, weights: Sequence[PackedWeight], epilogue: Epilogue, wide: bool) -> list[Any]:
    """Results with a guard before and behind, as they lie in memory."""
    count = 1 if epilogue is SWIGLU else len(weights)
    dtype = np.float32 if wide else np.uint16
    rooms = [cupy.full((len(x) + 2, w.shape[0]), 3, dtype) for w in weights[:count]]
    kernel.launch(Product(x, weights, [room[1:-1] for room in rooms], epilogue))
    return [room.get() for room in rooms]


@pytest.mark.parametrize("loud", [0, 5])
@pytest.mark.parametrize("tokens", [1, 193, 257, 512, 1100])
@pytest.mark.parametrize(
    ("rows", "epilogue", "wide"),
    [
        ((1000, 264, 72), STORE, False),
        ((64, 8, 264), STORE, True),
        ((512, 64, 1000, 72, 128), STORE, False),
        ((520, 520), SWIGLU, False),
        ((1000,), ADD, True),
    ],
)
def test_products_are_the_same_to_the_bit(multiplied, rows, epilogue, wide, tokens: int, loud: int) -> None:
    kernel, precision = multiplied
    width, x = 1024, cupy.asarray(inputs(tokens, 1024, loud))
    weights = marked([weight(Q6_K if i % 2 else Q4_K, n, width, i) for i, n in enumerate(rows)], precision)
    want = made(kernel, x, weights, epilogue, wide)
    for got, expected in zip(made(kernel, x, held(weights), epilogue, wide), want, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert (got[[0, -1]] == 3).all()
        assert np.ptp(got[1:-1].astype(np.float64)) > 0


def opened() -> Model:
    """The embedded target in int8."""
    return load_model(embedded("target"), device="cuda", precision="int8")


def ids_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 4096, n)


@pytest.mark.parametrize("tokens", [257, 511, 512, 1024, 1500, 3000])
def test_a_model_says_the_same_with_weights_kept_or_not(path: str, tokens: int) -> None:
    model = opened()
    assert model.arithmetic.kept > 0
    ids, where = ids_of(tokens), np.arange(tokens)
    reset_launched()
    found = prefill(model, ids, where, model.new_cache(tokens), chunk=1500).get()
    assert "unpack.cu" not in launched_sources()
    model.weights = drop_prequantized(model.weights)
    want = prefill(model, ids, where, model.new_cache(tokens), chunk=1500).get()
    assert ("unpack.cu" in launched_sources()) == (tokens >= ROUNDED_TOKENS)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("tokens", [257, ROUNDED_TOKENS - 1, ROUNDED_TOKENS, 1023])
def test_short_prompts_are_read_in_bf16_with_weights_kept_too(path: str, tokens: int) -> None:
    model, ids, where = opened(), ids_of(tokens), np.arange(tokens)
    reset_launched()
    found, long = prefill(model, ids, where, model.new_cache(tokens)).get(), tokens >= ROUNDED_TOKENS
    assert ("round_rows.cu" in launched_sources()) == long
    plain = load_model(embedded("target"), device="cuda")
    error = nmse(found, prefill(plain, ids, where, plain.new_cache(tokens)).get())
    assert 1e-9 < error < 2e-2 if long else error == 0


@pytest.mark.no_sanitizer  # captures allocate
@pytest.mark.parametrize("runs", [(512,), (1024,), (1100, 1500, 1024), (2048, 100, 700)])
def test_graphs_have_products_of_bytes_in_them(path: str, runs: tuple[int, ...]) -> None:
    """Replays are what launches one by one are; which channels are outliers, each run finds for itself."""
    model = opened()
    seen = []
    reset_launched()
    for eager in (True, False):
        cache = model.new_cache(4096)
        graphs = PrefillGraphs(model, cache, eager=eager)
        for turn in range(4):
            cache.reset()
            graphs.take_counts()
            for n in runs:
                at = cache.tokens
                logits = prefill(model, ids_of(n + turn)[:n], np.arange(at, at + n), cache, graphs=graphs).get()
                seen.append(logits)
        assert graphs.refused is None
        assert graphs.take_counts() == {"eager" if eager else "replayed": sum(runs)}
        graphs.end()
    assert {"round_rows.cu", "loud_weight.cu"} <= set(launched_sources())
    for width in (512, 1024, 1536):
        assert not any(one.any() for one in _peaks(current_device(), width)), "zero between launches"
    half = len(seen) // 2
    for got, want in zip(seen[half:], seen[:half], strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got, want)


@pytest.mark.no_sanitizer
def test_weights_that_are_let_go_are_in_no_graph_any_more(path: str) -> None:
    """Between two runs of a size whose graph knows where kept weights lay."""
    model, n = opened(), 1024
    cache = model.new_cache(n)
    graphs, found = PrefillGraphs(model, cache), []
    for turn in range(5):
        if turn == 3:
            model.weights = drop_prequantized(model.weights)
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.full(1 << 28, 0xFF, cupy.uint8)
        cache.reset()
        found.append(prefill(model, ids_of(n), np.arange(n), cache, graphs=graphs).get())
    assert graphs.refused is None
    graphs.end()
    for logits in found[1:]:
        np.testing.assert_array_equal(logits, found[0])


def test_nothing_is_kept_under_a_limit_or_where_it_would_take_over_half(monkeypatch) -> None:
    pool = cupy.get_default_memory_pool()
    before = pool.get_limit()
    try:
        pool.set_limit(size=1 << 33)
        assert load_model(embedded("target"), device="cuda", precision="int8").arithmetic.kept == 0
    finally:
        pool.set_limit(size=before)
    model = load_model(embedded("target"), device="cuda", precision="int8")
    nbytes = model.arithmetic.kept
    assert nbytes > 0
    pool.free_all_blocks()
    for spare, found in ((2 * nbytes - 1, 0), (2 * nbytes, nbytes)):
        free = spare - (pool.total_bytes() - pool.used_bytes())
        runtime = SimpleNamespace(memGetInfo=lambda free=free: (free, 0))
        seen = SimpleNamespace(
            get_default_memory_pool=cupy.get_default_memory_pool, cuda=SimpleNamespace(runtime=runtime)
        )
        monkeypatch.setattr(keeping, "import_cupy", lambda seen=seen: seen)
        assert keeping.prequantize(drop_prequantized(model.weights))[1] == found
