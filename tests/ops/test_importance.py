"""importance in NumPy: paged keys and a running result equal the reduction of all weights at once; undoing RoPE."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.importance import STEPS, Reduction, attention_probs, fold_defines, importance
from sp.ops.attention.kv_pages import PagedKV, kv_append, kv_gather
from sp.ops.rope import Rope, rope
from sp.quant import F16, F32, Q4_0

TOKENS, HEADS, KV_HEADS, D, N = 300, 4, 2, 64, 6


def paged(rng: np.random.Generator, fmt, page_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Random keys in scattered pages; slots without a token are full of 0xFF (a NaN)."""
    blocks = -(-TOKENS // page_tokens)
    pages = np.full((blocks + 2, page_tokens, KV_HEADS, fmt.row_bytes(D)), 0xFF, np.uint8)
    table = rng.permutation(blocks + 2)[:blocks]
    kv_append(pages, table, 0, rng.standard_normal((TOKENS, KV_HEADS, D)).astype(np.float32), fmt)
    return pages, table


@pytest.mark.parametrize("order", [",".join(order) for order in permutations(STEPS)])
@pytest.mark.parametrize("over_heads", ["max", "mean"])
@pytest.mark.parametrize("causal", [True, False])
def test_layer_by_layer_equals_all_weights_at_once(order, over_heads, causal) -> None:
    rng, reduction = np.random.default_rng(0), Reduction(order, over_heads, "mean", 5)
    running, stacked = None, []
    for fmt, page_tokens in ((F32, 128), (F16, 7), (Q4_0, 32)):
        q = rng.standard_normal((N, HEADS, D)).astype(np.float32)
        pages, table = paged(rng, fmt, page_tokens)
        actual = importance(
            q, PagedKV(pages, pages, table, TOKENS, fmt), reduction, running, causal=causal, by_head=True
        )
        running = actual.running
        limit = np.arange(TOKENS - N, TOKENS) if causal else np.full(N, TOKENS - 1)
        stacked.append(attention_probs(q, kv_gather(pages, table, TOKENS, fmt), limit))
        assert actual.by_layer.shape == (10,)
        assert actual.by_head is not None
        assert actual.by_head.shape == (HEADS, 10)
        assert actual.by_head.max() <= actual.by_layer.max()
    whole = reduction.fold(np.concatenate(stacked), None)
    np.testing.assert_allclose(running, whole, rtol=1e-5)
    np.testing.assert_allclose(reduction.finish(running, 3 * HEADS), reduction.finish(whole, 3 * HEADS), rtol=1e-5)


def test_before_and_after_the_heads_are_the_whole_order() -> None:
    for order in permutations(STEPS):
        reduction = Reduction(",".join(order))
        assert (*reduction.before, "heads", *reduction.after) == order


@pytest.mark.parametrize(
    ("order", "pool", "want"),
    [
        ("pool,heads,queries", 13, (13, 0, 1)),
        ("pool,queries,heads", 13, (13, 1, 1)),
        ("queries,pool,heads", 13, (13, 1, 2)),
        ("queries,heads,pool", 13, (1, 1, 0)),
        ("heads,pool,queries", 13, (1, 0, 0)),
        ("pool,heads,queries", 1, (1, 0, 0)),
    ],
)
def test_defines_of_a_reduction_before_the_heads(order, pool, want) -> None:
    defines = fold_defines(Reduction(order, pool=pool))
    assert tuple(defines[name] for name in ("WIDTH", "QUERIES_FIRST", "POOL_AT")) == want
    with pytest.raises(ConfigError, match="193"):
        fold_defines(Reduction(pool=195))


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_unrotate_undoes_rope(pairing) -> None:
    rng, rotary = np.random.default_rng(1), Rope(1e6, D, pairing)
    x, where = rng.standard_normal((9, 2, D)).astype(np.float32), rng.integers(0, 1_000_000, 9)
    np.testing.assert_allclose(unrotate(rope(x, where, rotary), where, rotary), x, atol=1e-6)
