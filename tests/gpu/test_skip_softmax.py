"""Attention that leaves out tiles of little weight, on both paths, against float64 and the bound that it promises."""

from __future__ import annotations

import numpy as np
import pytest
from compare import nmse, to_float64
from device_models import case
from sparse_case import Case

from sp.kernels.specs.attention.attention_skip import portable_variant
from sp.models import prefill, prefill_sparse
from sp.ops.attention.kv_pages import kv_append
from sp.ops.skip_softmax import SkipSoftmax, skipped, skipping_attention
from sp.ops.sparse.block_lists import causal
from sp.quant import F16, Q8_0

BOUND = 6e-6  # NMSE: rounding the output to bf16 alone gives about 2.8e-6
SHAPES = [(24, 4, 256), (8, 2, 128), (9, 3, 64)]
LENGTHS = [(1, 1), (1, 700), (127, 127), (129, 129), (300, 1111), (1000, 1064), (2500, 2500)]


def whole(c: Case) -> np.ndarray:
    return c.attend(causal(c.n, c.tokens)[None].repeat(c.q.shape[1], axis=0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_without_a_budget_it_is_dense(shape, lengths, guarded, path) -> None:
    c = Case(*lengths, *shape, kind="real")
    out, tiles = skipping_attention(*c.device(guarded), SkipSoftmax(0.0))
    assert nmse(to_float64(out), whole(c)) < BOUND
    # Weights that are 0 beside the others are left out, at no loss.
    assert 0 < int(tiles.read.sum()) <= tiles.possible


@pytest.mark.parametrize("kind", ["random", "sink", "real", "planted", "peaked"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [0.05, 0.4])
def test_it_is_as_in_numpy(kind, shape, budget, guarded, path) -> None:
    """Rows that leave out tiles together are those of the path; a tile whose share is near the bound may go either
    way."""
    c = Case(1100, 2200, *shape, kind=kind)
    q, at, scale = c.device(guarded)
    out, tiles = skipping_attention(q, at, scale, SkipSoftmax(budget))
    size = (16 * portable_variant(shape[2])["SLICES"], 64) if path == "portable" else None
    want, twin = skipped(c.q.astype(np.float64), c.k, c.v, scale, budget, size)
    shares = int(tiles.read.sum()) / tiles.possible, twin.read.sum() / twin.possible
    print("read {:.3f} of the tiles, in NumPy {:.3f}".format(*shares))
    got, largest = to_float64(out), np.abs(c.v).max()
    assert np.abs(got - want).max(axis=2).mean() < 0.004 * largest
    assert np.abs(got - want).max() < 2 * budget * largest + 0.004 * largest
    assert abs(shares[0] - shares[1]) < 0.01
    if kind in ("real", "sink", "peaked") and budget == 0.4:
        assert shares[0] < 0.85


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_planted_tiles_are_read(shape, guarded, path) -> None:
    """The first keys hold the weight of all queries, so the result is that of these tiles alone, and exact."""
    c = Case(1024, 1024, *shape)
    heads, kv_heads, d = shape
    c.q[:] = 0
    c.q[..., 0] = 8
    k = np.zeros((1024, kv_heads, d), np.float32)
    k[..., 0] = -8
    k[:128, :, 0] = 8
    v = np.random.default_rng(0).standard_normal(k.shape).astype(np.float32)
    for page, rows in zip(c.pages, (k, v), strict=True):
        kv_append(page, c.table, 0, rows, F16)
    q, at, _ = c.device(guarded)
    out, tiles = skipping_attention(q, at, 0.25, SkipSoftmax(1e-3))
    want = v.astype(np.float16).astype(np.float64)[:128].mean(axis=0).repeat(heads // kv_heads, axis=0)
    np.testing.assert_allclose(to_float64(out)[128:], np.broadcast_to(want, (896, heads, d)), atol=4e-3)
    assert int(tiles.read.sum()) < 0.55 * tiles.possible


def test_packed_pages_and_nothing_past_the_end(guarded, path) -> None:
    for fmt in (F16, Q8_0):
        c = Case(400, 900, 4, 2, 128, kind="real", fmt=fmt)
        out, _ = skipping_attention(*c.device(guarded), SkipSoftmax(0.001))
        assert np.isfinite(to_float64(out)).all()
        assert nmse(to_float64(out), whole(c)) < 1e-4


@pytest.mark.parametrize("name", ["target", "tiny-qwen35:q8_0", "tiny-gemma3:bf16", "tiny-gpt-oss:mxfp4_moe"])
@pytest.mark.parametrize("kv", ["f16", "q8_0", "4bit"])
def test_a_prefill_with_it(name, kv, path) -> None:
    """Layers with windows, sinks or softcaps attend densely."""
    n, c = 2500, case(name)
    ids, where = np.tile(c.ids, -(-n // len(c.ids)))[:n], np.arange(n)
    want = prefill(c.gpu, ids, where, c.gpu.new_cache(n, kv)).get()
    got, densities = prefill_sparse(c.gpu, ids, where, c.gpu.new_cache(n, kv), SkipSoftmax(0.0), chunk=1000)
    assert nmse(got.get(), want) < (5e-2 if "gpt-oss" in name else 2e-3)
    lossy, fewer = prefill_sparse(c.gpu, ids, where, c.gpu.new_cache(n, kv), SkipSoftmax(0.05), chunk=1000)
    assert np.isfinite(lossy.get()).all()
    print(name, kv, "densities", densities, fewer, f"nmse {nmse(lossy.get(), want):.2e}")
    assert all(b <= a + 1e-9 for a, b in zip(densities, fewer, strict=True))
