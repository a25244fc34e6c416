"""attention against softmax written out in float64."""

from __future__ import annotations

import math
import sys
import tracemalloc

import numpy as np
import pytest

from sp.ops.attention.attention import attention

MODULE = sys.modules["sp.ops.attention.attention"]


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One query, head and softmax at a time."""
    n, heads, d = q.shape
    kv_tokens, kv_heads, _ = k.shape
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    out = np.zeros((n, heads, d))
    for i in range(n):
        seen = kv_tokens - n + i + 1
        for h in range(heads):
            kv = h // (heads // kv_heads)
            score = np.array([q[i, h] @ k[j, kv] for j in range(seen)]) / math.sqrt(d)
            weight = np.exp(score - score.max())
            out[i, h] = (weight[:, None] * v[:seen, kv]).sum(0) / weight.sum()
    return out


def tile_keys(monkeypatch, keys: int) -> None:
    """Cut every tile after `keys` keys."""
    monkeypatch.setattr(MODULE, "KEY_TOKENS", keys)
    monkeypatch.setattr(MODULE, "TILE_SCORES", keys)


def random_qkv(n: int, kv_tokens: int, heads: int, kv_heads: int, d: int, scale: float = 1.0):
    """Random float32 q, k, v."""
    rng = np.random.default_rng([n, kv_tokens, heads, d])
    q = scale * rng.standard_normal((n, heads, d))
    k, v = rng.standard_normal((2, kv_tokens, kv_heads, d))
    return q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)


SHAPES = [(1, 1, 1, 1, 1), (5, 5, 3, 1, 8), (1, 83, 6, 2, 16), (37, 61, 4, 4, 24), (70, 70, 6, 2, 8), (0, 9, 2, 1, 4)]


@pytest.mark.parametrize(("n", "kv_tokens", "heads", "kv_heads", "d"), SHAPES)
@pytest.mark.parametrize("tiles", [(1024, 512), (12, 16), (7, 5), (1, 1)])
def test_equals_the_definition_for_any_tiling(n, kv_tokens, heads, kv_heads, d, tiles, monkeypatch) -> None:
    monkeypatch.setattr(MODULE, "QUERY_ROWS", tiles[0])
    tile_keys(monkeypatch, tiles[1])
    q, k, v = random_qkv(n, kv_tokens, heads, kv_heads, d)
    actual = attention(q, k, v)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, reference(q, k, v), atol=3e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-3, 30.0, 300.0])
def test_scores_of_any_size_rising_and_falling(scale, monkeypatch) -> None:
    """Scores hundreds apart, whose maximum comes late in some rows and early in others."""
    tile_keys(monkeypatch, 16)
    q, k, v = random_qkv(40, 90, 2, 1, 8)
    k *= (np.linspace(-1, 1, 90) ** 3)[:, None, None].astype(np.float32)
    q *= np.float32(scale)
    actual = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    np.testing.assert_allclose(actual, reference(q, k, v), atol=1e-12)
    np.testing.assert_allclose(attention(q, k, v), reference(q, k, v), atol=2e-7 * scale + 3e-6)


def test_a_late_rise_past_the_headroom_rescales_what_was_summed(monkeypatch) -> None:
    """Each tile's scores pass the row reference by more than float32 could hold without rescaling."""
    tile_keys(monkeypatch, 4)
    kv = 24
    k = (np.arange(kv) // 4 * 100.0)[:, None, None].astype(np.float32)
    v = np.random.default_rng(0).standard_normal((kv, 1, 1)).astype(np.float32)
    q = np.array([1.0, -1.0], np.float32).reshape(1, 2, 1)
    np.testing.assert_allclose(attention(q, k, v), reference(q, k, v), atol=1e-6)


def test_tiles_after_a_rise_count_as_much_as_the_tile_that_rose(monkeypatch) -> None:
    tile_keys(monkeypatch, 4)
    k = np.repeat([0.0, 100.0, 100.0, 99.0, 300.0, 299.0], 4)[:, None, None].astype(np.float32)
    v = np.random.default_rng(0).standard_normal((24, 1, 1)).astype(np.float32)
    for seen in (12, 16, 20, 24):
        q = np.ones((1, 1, 1), np.float32)
        np.testing.assert_allclose(attention(q, k[:seen], v[:seen]), reference(q, k[:seen], v[:seen]), atol=1e-5)


def test_future_keys_have_no_influence() -> None:
    q, k, v = random_qkv(30, 50, 2, 1, 8)
    before = attention(q, k, v)
    k[-5:], v[-5:] = 1e3, 1e3
    after = attention(q, k, v)
    np.testing.assert_array_equal(after[:-5], before[:-5])
    assert (after[-5:] != before[-5:]).any(axis=(1, 2)).all()


def test_accepts_strided_keys() -> None:
    q, k, v = random_qkv(9, 20, 4, 2, 8)
    wide = np.concatenate([k, v], axis=2)
    np.testing.assert_array_equal(attention(q, wide[..., :8], wide[..., 8:]), attention(q, k, v))


def test_memory_does_not_grow_with_the_square_of_the_prompt() -> None:
    q, k, v = random_qkv(3000, 3000, 4, 1, 16)
    tracemalloc.start()
    attention(q, k, v)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    scores = 4 * 3000 * 3000 * 4
    assert peak < q.nbytes + (12 << 20) < scores / 8
