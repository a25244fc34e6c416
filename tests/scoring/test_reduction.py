"""Reductions and attention weights against slow float64 formulas."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.ops.attention.importance import attention_probs, max_pool
from sp.scoring.attention.attention import STEPS, Fold, Reduction, average_pool
from sp.scoring.base import chunk_means


def slow_pool(row: np.ndarray, width: int, edges: str) -> np.ndarray:
    half = width // 2
    out = np.empty(len(row))
    for j in range(len(row)):
        window = row[max(0, j - half) : j + half + 1]
        out[j] = window.sum() / (width if edges == "zero" else len(window))
    return out


@pytest.mark.parametrize("edges", ["renormalise", "zero"])
@pytest.mark.parametrize(("n", "width"), [(1, 13), (5, 13), (40, 13), (40, 1), (41, 3)])
def test_average_pool_equals_the_loop(n: int, width: int, edges: str) -> None:
    row = np.random.default_rng(n).random(n).astype(np.float32)
    np.testing.assert_allclose(average_pool(row, width, edges), slow_pool(row, width, edges), rtol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "width"), [(1, 64), (5, 13), (40, 1), (41, 2), (100, 64), (70, 5)])
def test_max_pool_equals_the_loop_and_its_window_begins_half_a_width_before(n: int, width: int) -> None:
    rows = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    want = [[row[max(0, j - width // 2) : j - width // 2 + width].max() for j in range(n)] for row in rows]
    np.testing.assert_array_equal(max_pool(rows, width), want)


def test_a_maximum_may_pool_before_the_heads_too() -> None:
    probs = np.random.default_rng(3).random((4, 5, 37)).astype(np.float32)
    fold = Fold(Reduction("pool,heads,queries", "mean", "mean", pool=6, pooling="max"))
    fold.add(probs)
    np.testing.assert_allclose(fold.result(), max_pool(probs, 6).mean(axis=(0, 1)), rtol=1e-6)


def test_zero_edges_damp_the_first_token_by_six_thirteenths() -> None:
    assert average_pool(np.ones(50, np.float32), 13, "zero")[0] == pytest.approx(7 / 13)


@pytest.mark.parametrize("order", [",".join(p) for p in permutations(STEPS)])
@pytest.mark.parametrize("heads", ["max", "mean"])
@pytest.mark.parametrize("queries", ["max", "mean"])
def test_folding_layer_by_layer_equals_reducing_the_whole_stack(order: str, heads: str, queries: str) -> None:
    probs = np.random.default_rng(0).random((3, 4, 5, 37)).astype(np.float32)  # (layers, heads, queries, tokens)
    fold = Fold(Reduction(order, heads, queries, pool=7))  # type: ignore[arg-type]
    for layer in probs:
        fold.add(layer)
    want = probs.astype(np.float64).reshape(12, 5, 37)
    axes = ["heads", "queries", "tokens"]
    for step in order.split(","):
        if step == "pool":
            want = np.apply_along_axis(slow_pool, -1, want, 7, "renormalise")
        else:
            how = {"heads": heads, "queries": queries}[step]
            want = getattr(want, how)(axis=axes.index(step))
            axes.remove(step)
    np.testing.assert_allclose(fold.result(), want, rtol=2e-6)
    np.testing.assert_allclose(np.stack(fold.layers), [chunk_means(p.max(0).mean(0), 32) for p in probs], rtol=1e-6)


def test_orders_differ_where_they_should() -> None:
    probs = np.zeros((2, 2, 40), np.float32)
    probs[0, 0, 5] = probs[1, 1, 30] = 1
    results = {}
    for order in ("pool,heads,queries", "queries,heads,pool", "heads,queries,pool"):
        fold = Fold(Reduction(order, "max", "max", pool=3))
        fold.add(probs)
        results[order] = fold.result()
    assert results["pool,heads,queries"][5] == pytest.approx(1 / 3)
    fold = Fold(Reduction("pool,heads,queries", "mean", "mean", pool=1))
    fold.add(probs)
    assert fold.result()[5] == pytest.approx(0.25)


@pytest.mark.parametrize("options", [{"order": "pool,heads"}, {"order": "heads,heads,pool"}, {"pool": 4}, {"pool": 0}])
def test_bad_reductions_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Reduction(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "s", "heads", "kv_heads"), [(1, 1, 2, 1), (3, 17, 4, 2), (8, 129, 6, 1)])
def test_attention_probs_equal_float64_softmax(n: int, s: int, heads: int, kv_heads: int) -> None:
    rng = np.random.default_rng(s)
    q = rng.standard_normal((n, heads, 16)).astype(np.float32)
    k = rng.standard_normal((s, kv_heads, 16)).astype(np.float32)
    limit = np.arange(s - n, s) if s >= n else np.zeros(n, int)
    got = attention_probs(q, k, limit)
    for head in range(heads):
        for row in range(n):
            logits = k[: limit[row] + 1, head // (heads // kv_heads)].astype(float) @ q[row, head].astype(float) / 4
            want = np.exp(logits - logits.max())
            np.testing.assert_allclose(got[head, row, : limit[row] + 1], want / want.sum(), rtol=2e-5, atol=1e-8)
            assert not got[head, row, limit[row] + 1 :].any()


def test_chunk_means_use_the_real_length_of_a_short_last_chunk() -> None:
    values = np.arange(70, dtype=np.float32)
    np.testing.assert_allclose(chunk_means(values, 32), [15.5, 47.5, 66.5])
