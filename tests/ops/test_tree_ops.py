"""masked_attention against plain loops in float64, and kv_commit."""

from __future__ import annotations

import math

import numpy as np

from sp.ops.attention.kv_pages import kv_commit
from sp.ops.attention.masked_attention import masked_attention
from sp.quant import Q4_0


def test_masked_attention_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    n, keys, heads, kv_heads, d = 5, 9, 6, 2, 16
    q = rng.standard_normal((n, heads, d)).astype(np.float32) * 3
    k, v = (rng.standard_normal((keys, kv_heads, d)).astype(np.float32) for _ in range(2))
    visible = rng.random((n, keys)) < 0.5
    visible[:, 3] = True
    actual = masked_attention(q, k, v, visible)
    for i in range(n):
        for h in range(heads):
            weight = [
                math.exp(float(q[i, h].astype(np.float64) @ k[j, h // 3]) / math.sqrt(d)) if visible[i, j] else 0.0
                for j in range(keys)
            ]
            expected = sum(w * v[j, h // 3].astype(np.float64) for j, w in enumerate(weight)) / sum(weight)
            np.testing.assert_allclose(actual[i, h], expected, atol=2e-6)
    changed = v.copy()
    changed[~visible.any(axis=0) | ~visible[0]] = 1e30
    np.testing.assert_array_equal(masked_attention(q, k, changed, visible)[0], actual[0])


def test_moved_tokens_keep_their_packed_bytes() -> None:
    rng = np.random.default_rng(2)
    k_pages, v_pages = rng.integers(0, 256, (2, 6, 4, 2, Q4_0.row_bytes(32)), np.uint8)
    tables = np.array([[2, 0, 5], [4, 1, 3]])
    before = k_pages[tables].reshape(2, 12, -1), v_pages[tables].reshape(2, 12, -1)
    kv_commit(
        k_pages, v_pages, tables, 11, 8, np.array([0, 2, 3, 7, 99]), 4
    )  # across pages, and from what is overwritten
    for pages, was in zip((k_pages, v_pages), before, strict=True):
        want = was[:, [0, 1, 2, 3, 5, 6, 10, 7, 8, 9, 10, 11]]
        np.testing.assert_array_equal(pages[tables].reshape(2, 12, -1), want)
