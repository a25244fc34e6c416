"""Importance of cached tokens on the device against the reduction of float64 softmax weights."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from compare import nmse, to_float64
from paged import PagedCase, names

cp = pytest.importorskip("cupy")

from sp.errors import ConfigError  # noqa: E402
from sp.ops.attention.attention_heads import unrotate  # noqa: E402
from sp.ops.attention.importance import STEPS, Reduction, attention_probs, fold_weights, importance  # noqa: E402
from sp.ops.attention.kv_pages import kv_gather  # noqa: E402
from sp.ops.rope import Rope, rope  # noqa: E402
from sp.quant import F16, Q4_0  # noqa: E402
from sp.quant.cached import K5, V4  # noqa: E402

BOUND = {F16: 1e-8, Q4_0: 1e-5, (K5, V4): 1e-5}  # packed keys are rounded to f16 on the device
SHAPES = [(16, 8, 128), (24, 4, 256), (6, 1, 64), (8, 1, 512)]


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What an op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def layer(seed: int, n: int, tokens: int, heads: int, kv_heads: int, d: int, fmt=F16):
    """Queries that pick few keys, and a paged cache whose other slots are NaN."""
    rng = np.random.default_rng(seed)
    q = (3 * rng.standard_normal((n, heads, d))).astype(np.float16)
    return q, PagedCase.make(rng, tokens, kv_heads, d, fmt, fmt == (K5, V4))


def weights(q: np.ndarray, case: PagedCase, causal: bool) -> np.ndarray:
    k, _ = case.stored()
    q = case.queries(q)
    n, tokens = len(q), case.tokens
    limit = np.arange(tokens - n, tokens) if causal else np.full(n, tokens - 1)
    return attention_probs(q.astype(np.float64), k, limit)


def on_device(q, case, reduction, running=None, **options):
    return importance(cp.asarray(q), case.device(), reduction, running, **options)


@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES)
@pytest.mark.parametrize("fmt", [F16, Q4_0, (K5, V4)], ids=names)
@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (8, 8), (1, 129), (8, 1000), (13, 5003), (40, 128)])
@pytest.mark.parametrize("causal", [True, False])
def test_importance(heads, kv_heads, d, fmt, n, tokens, causal):
    q, case = layer(n + tokens, n, tokens, heads, kv_heads, d, fmt)
    got = on_device(q, case, Reduction(), causal=causal, by_head=True)
    want = fold_weights(weights(q, case, causal), Reduction(), None, by_head=True)
    for name in ("running", "by_layer", "by_head"):
        assert nmse(getattr(got, name), getattr(want, name)) < BOUND[fmt], name


@pytest.mark.parametrize("order", [",".join(order) for order in permutations(STEPS)])
@pytest.mark.parametrize(("over_heads", "over_queries"), [("max", "mean"), ("mean", "max")])
@pytest.mark.parametrize(("pool", "edges"), [(13, "renormalise"), (7, "zero"), (1, "zero")])
def test_every_reduction_over_two_layers(order, over_heads, over_queries, pool, edges):
    reduction = Reduction(order, over_heads, over_queries, pool, edges)
    got = want = None
    for seed in (1, 2):
        q, case = layer(seed, 5, 700, 16, 8, 128)
        got = on_device(q, case, reduction, got).running
        want = reduction.fold(weights(q, case, True), want)
    assert nmse(got, want) < BOUND[F16]
    result = reduction.finish(got.get(), 32)
    assert nmse(result, reduction.finish(want, 32)) < BOUND[F16]


def test_the_same_bits_every_time_and_at_any_place_in_memory():
    q, case = layer(3, 8, 9001, 16, 8, 128)
    first = on_device(q, case, Reduction())
    case.table = case.table[::-1].copy()
    case.k_pages[case.table] = case.k_pages[case.table[::-1]]
    again = on_device(q, case, Reduction())
    np.testing.assert_array_equal(again.running.get(), first.running.get())
    np.testing.assert_array_equal(again.by_layer.get(), first.by_layer.get())


def test_a_long_prompt_ranks_its_needles():
    tokens, rng = 30_000, np.random.default_rng(0)
    q, case = layer(4, 8, tokens, 16, 8, 128)
    k = kv_gather(case.k_pages, case.table, tokens, F16)
    places = np.sort(rng.choice(tokens - 100, 20, replace=False))
    for i, place in enumerate(places):
        k[place, i % 8] = q[i % 8, 2 * (i % 8)]  # a key that equals a query of one of its heads
    slots = case.table[np.arange(tokens) // 128], np.arange(tokens) % 128
    case.k_pages[slots] = F16.encode(k)
    found = Reduction(pool=1).finish(on_device(q, case, Reduction(pool=1)).running.get(), 16)
    assert set(np.argsort(found)[-20:]) == set(places)


def test_wide_averages_and_their_limit():
    q, case = layer(5, 2, 600, 6, 1, 64)
    for pool in (63, 193):
        got = on_device(q, case, Reduction(pool=pool)).running
        assert nmse(got, Reduction(pool=pool).fold(weights(q, case, True), None)) < BOUND[F16]
    with pytest.raises(ConfigError, match="at most 193"):
        on_device(q, case, Reduction(pool=195))


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize(("d", "rope_dim"), [(128, 128), (256, 64), (512, 512)])
def test_unrotate_undoes_rope(d, rope_dim, pairing):
    rng = np.random.default_rng(d)
    x, positions = rng.standard_normal((133, 3, d)), rng.integers(0, 1_000_000, 133)
    rotary = Rope(1e6, rope_dim, pairing)
    turned = rope(x, positions, rotary).astype(np.float16)
    got = unrotate(cp.asarray(turned), cp.asarray(positions), rotary)
    assert nmse(got, x) < 4e-7
    assert np.abs(to_float64(got) - x).max() < 8e-3


@pytest.mark.parametrize("order", [",".join(order) for order in permutations(STEPS)])
@pytest.mark.parametrize(("over_heads", "over_queries"), [("max", "mean"), ("mean", "max")])
@pytest.mark.parametrize("least", [0.0, -1.0])
def test_weights_that_are_given_fold_alike(order, over_heads, over_queries, least):
    """In rows with a pitch as `softmaxed` leaves them, and packed; of either sign, as filters by logits have them."""
    reduction, rng, got, want = Reduction(order, over_heads, over_queries, 7), np.random.default_rng(8), None, None
    for pitch in (1024, 1000):
        host = rng.uniform(least, 1, (6, 5, pitch)).astype(np.float32)[..., :1000]
        given = cp.full((6, 5, pitch), cp.nan, np.float32)
        given[..., :1000] = cp.asarray(host)
        folded = fold_weights(given[..., :1000], reduction, got, by_head=True)
        expected = fold_weights(host.astype(np.float64), reduction, want, by_head=True)
        got, want = folded.running, expected.running
        for name in ("running", "by_layer", "by_head"):
            assert nmse(getattr(folded, name), getattr(expected, name)) < 1e-10, name
