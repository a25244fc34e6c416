"""The NumPy twins of tree_attention and top_logprobs against plain loops, and against attention under a causal mask."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sp.ops import hadamard, kv_append
from sp.ops.attention.attention import attention_output
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.tree_attention import seen_words, tree_attention, visible
from sp.ops.sampling.sample import top_logprobs
from sp.quant import F32

HEADS, KV_HEADS, D = 4, 2, 64


def stored(rng: np.random.Generator, tokens: int, rotated: bool = False) -> tuple[PagedKV, list[np.ndarray]]:
    """Keys and values in pages, NaN where no token lies, and what was stored."""
    table = rng.permutation(tokens // 4 + 3)
    pages = [np.full((len(table), 4, KV_HEADS, F32.row_bytes(D)), 0xFF, np.uint8) for _ in range(2)]
    values = [rng.standard_normal((tokens, KV_HEADS, D)).astype(np.float32) for _ in range(2)]
    for page, value in zip(pages, values, strict=True):
        kv_append(page, table, 0, value, F32, D if rotated else 0)
    return PagedKV(*pages, table, tokens, F32, rotated), values


@pytest.mark.parametrize("window", [None, 1, 5, 9, 100])
@pytest.mark.parametrize(("n", "start"), [(1, 0), (5, 0), (7, 1), (64, 13)])
def test_tree_attention_is_the_formula(n: int, start: int, window: int | None) -> None:
    rng = np.random.default_rng(n)
    at, (k, v) = stored(rng, start + n)
    q = rng.standard_normal((n, HEADS, D)).astype(np.float32)
    mask = rng.random((n, n)) < 0.4  # not only ancestors: a draft block looks both ways
    np.fill_diagonal(mask, True)
    actual = tree_attention(q, at, seen=seen_words(mask), rule=ScoreRule(window=window))
    for i in range(n):
        keys = [t for t in range(start) if window is None or start + i - t < window]
        keys += [start + j for j in range(n) if mask[i, j]]
        for h in range(HEADS):
            weight = [math.exp(float(q[i, h].astype(np.float64) @ k[t, h // 2]) / math.sqrt(D)) for t in keys]
            want = sum(w * v[t, h // 2].astype(np.float64) for w, t in zip(weight, keys, strict=True)) / sum(weight)
            np.testing.assert_allclose(actual.reshape(n, HEADS, D)[i, h], want, atol=3e-6)


def test_a_chain_is_causal_attention_rotated_and_gated() -> None:
    rng = np.random.default_rng(0)
    at, _ = stored(rng, 20, rotated=True)
    q, wide = (rng.standard_normal((6, HEADS, size)).astype(np.float32) for size in (D, 2 * D))
    seen = seen_words(np.tri(6, dtype=bool))
    actual = tree_attention(q, at, seen=seen, wide=wide)
    np.testing.assert_allclose(actual, attention_output(q, at, wide), atol=2e-6)
    assert not np.allclose(actual, tree_attention(hadamard(q, D), at, seen=seen, wide=wide))


def test_all_64_bits_count_and_no_more() -> None:
    everything = np.full(64, 2**64 - 1, np.uint64)
    assert visible(everything, 70).all()
    assert seen_words(np.ones((64, 64), bool)).tolist() == everything.tolist()
    assert visible(everything[:3], 5, np.array([1, 2, 3])).astype(int).tolist() == [
        [0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]


def test_top_logprobs_ranks_ties_by_token_and_is_the_log_softmax() -> None:
    rng = np.random.default_rng(1)
    logits = rng.integers(-6, 6, (5, 300)).astype(np.float32)
    logits[0, 7] = -np.inf
    tokens, log_probs = top_logprobs(logits, 16)
    for row, best, actual in zip(logits.astype(np.float64), tokens, log_probs, strict=True):
        assert best.tolist() == sorted(range(300), key=lambda i: (-row[i], i))[:16]
        np.testing.assert_allclose(np.exp(actual), np.exp(row[best]) / np.exp(row).sum(), rtol=1e-6)
