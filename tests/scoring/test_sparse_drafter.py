"""The drafter layer by layer: sparse attention, layer subsets, early exit, what is held, and the options for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retriever_files import token_task

from sp.errors import ConfigError, SpWarning
from sp.models import (
    Cache,
    Hooks,
    Model,
    SparseAttention,
    dense_attention,
    load_model,
    prefill,
    prefill_layer_major,
    read_layer_major,
)
from sp.ops.sparse.block_budget import read_rule
from sp.ops.sparse.block_lists import forced
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.scoring.attention.attention import Fold, Reduction
from sp.scoring.base import SPARSE_TOKENS, by_length

N = 1500
KNOWN: dict[str, Any] = {}


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.asarray(token_task(N, 20, seed=4).ids)


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """What several tests ask for is scored and read once, and held no longer than they run."""
    yield
    KNOWN.clear()


def score(model: Model, ids: np.ndarray, scorer: str = "tail", by_head: bool = False, **options) -> Importance:
    key = str((id(model), len(ids), scorer, by_head, sorted(options.items())))
    if key not in KNOWN:
        KNOWN[key] = scored(model, ids, scorer, by_head, options)
    return KNOWN[key]


def scored(model: Model, ids: np.ndarray, scorer: str, by_head: bool, options: dict[str, Any]) -> Importance:
    mask = np.zeros(len(ids), bool)
    request = ScoreRequest(model, ids, np.arange(len(ids)), mask, mask, by_head=by_head)
    return SCORERS.build(scorer, options).score(request)


@pytest.mark.parametrize("scorer", ["tail", "lookahead"])
@pytest.mark.parametrize("rotary", ["post", "none"])
def test_alpha_zero_is_dense(drafter, ids, scorer, rotary) -> None:
    dense = score(drafter, ids, scorer, rotary=rotary)
    sparse = score(drafter, ids, scorer, rotary=rotary, sparse="alpha:0.0")
    np.testing.assert_allclose(sparse.scores, dense.scores, rtol=1e-3, atol=1e-6)
    assert sparse.densities == (1.0,) * (drafter.config.layers - 1)
    assert dense.densities == ()
    assert sparse.generated == dense.generated


def test_a_threshold_leaves_blocks_out_and_a_density_sets_how_many(drafter, ids) -> None:
    high, low = (score(drafter, ids, sparse=f"alpha:{a}").densities for a in (0.9, 0.001))
    assert len(high) == len(low) == drafter.config.layers - 1
    assert sum(high) <= sum(low) < len(low)
    blocks = -(-N // 128)
    floor = forced(N, N, sink=2, window=4, last_n=2).sum() / (blocks * (blocks + 1) / 2)
    for share in (0.01, 0.95):
        found = score(drafter, ids, sparse=f"density:{share}").densities[0]
        assert max(floor, share) - 1e-9 <= found <= max(floor, share) + 1 / blocks


def test_rules_set_how_many_blocks_are_read(drafter, ids) -> None:
    def read(rule: str) -> tuple[float, ...]:
        return score(drafter, ids, sparse=rule).densities

    assert read("constant:999") == read("energy:1.0:0:999") == (1.0,) * len(read("constant:999"))
    for rule in ("constant:7", "sqrt:9:1024", "energy:0.5:1:7"):
        wanted = expected_density(read_rule(rule, "blocks"), N)
        exact = not rule.startswith("energy")
        assert all(found == pytest.approx(wanted) if exact else 0 < found <= wanted for found in read(rule)), rule


def test_early_exit_is_the_drafter_without_its_later_layers(drafter, ids) -> None:
    whole = score(drafter, ids)
    first = score(drafter, ids, depth=1)
    # The last layer run projects the last rows' queries alone, others all rows': a BLAS may sum them in another order.
    room = rounding_of_weights(drafter, ids, 0)
    assert room < 0.02
    np.testing.assert_allclose(first.by_layer, whole.by_layer[:1], rtol=room, atol=np.finfo(np.float32).tiny)
    assert first.scores.shape == whole.scores.shape
    alone = score(drafter, ids, layers=[-1])
    np.testing.assert_array_equal(alone.by_layer, whole.by_layer[-1:])
    both = np.maximum(fold_of(drafter, ids, 0), fold_of(drafter, ids, drafter.config.layers - 1))
    subset = score(drafter, ids, layers=[0, -1])
    np.testing.assert_allclose(subset.scores, Reduction().finish(both, 1), rtol=1e-6)


def stored_of(model: Model, ids: np.ndarray) -> tuple[dict[int, np.ndarray], Cache]:
    """The last queries of every layer, and all keys, as a whole prefill has them."""
    key = str((id(model), len(ids)))
    if key in KNOWN:
        return KNOWN[key]
    queries: dict[int, np.ndarray] = {}
    cache = model.new_cache(len(ids))
    prefill_layer_major(
        model, ids, np.arange(len(ids)), cache, rows=8, hooks=Hooks(lambda i, q, _: queries.update({i: q[-8:].copy()}))
    )
    KNOWN[key] = queries, cache
    return queries, cache


def rounding_of_weights(model: Model, ids: np.ndarray, layer: int) -> float:
    """By how much, relatively, the order of sums in queries can change softmax weights of float32.

    A query is a sum of `hidden` products, off by at most as many units of rounding (2^-24) times its size, here taken
    for its own length; a score adds its `head_dim`. A weight is off by as much as its score and the largest are,
    absolutely, twice for two ways to sum.
    """
    queries, cache = stored_of(model, ids)
    c, q, k = model.config, queries[layer], cache.gather(layer)[0]
    largest = np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() / np.sqrt(c.head_dim)
    return float(4 * (c.hidden + c.head_dim) * 2.0**-24 * largest)


def fold_of(model: Model, ids: np.ndarray, layer: int) -> np.ndarray:
    """Running result of one layer, from keys and queries that a whole prefill stored."""
    queries, cache = stored_of(model, ids)
    fold = Fold(Reduction())
    fold.add_layer(queries[layer], cache.stored(layer), causal=True)
    return np.asarray(fold.running)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("chunk", [None, 333])
def test_streaming_equals_scoring_what_was_stored(drafter, ids, sparse, chunk) -> None:
    where, queries = np.arange(len(ids)), {}

    def attend():
        return SparseAttention(FlashPrefill(0.05)) if sparse else dense_attention

    cache = drafter.new_cache(len(ids))
    prefill_layer_major(
        drafter,
        ids,
        where,
        cache,
        rows=8,
        attend=attend(),
        hooks=Hooks(lambda i, q, _: queries.update({i: q[-8:].copy()})),
    )
    late, early = Fold(Reduction()), Fold(Reduction())
    for layer, q in queries.items():
        late.add_layer(q, cache.stored(layer), causal=True)
    one = drafter.new_cache(len(ids), layers=1)
    read_layer_major(
        drafter, ids, where, one, Hooks(lambda i, q, c: early.add_layer(q[-8:], c.stored(i), causal=True)),
        attend=attend(), rows=8, chunk=chunk,
    )  # fmt: skip
    assert one.peak_pages == -(-len(ids) // 128)
    assert one.pages_in_use == 0
    np.testing.assert_allclose(early.result(), late.result(), rtol=1e-3, atol=1e-6)


def test_another_attention_changes_the_logits_only_as_much_as_it_leaves_out(drafter, ids) -> None:
    where = np.arange(len(ids))
    want = prefill(drafter, ids, where, drafter.new_cache(len(ids)))
    for alpha, bound in ((0.0, 1e-3), (0.05, 0.5)):
        attend = SparseAttention(FlashPrefill(alpha))
        got = prefill_layer_major(drafter, ids, where, drafter.new_cache(len(ids)), attend=attend)
        assert np.abs(got - want).max() < bound * np.abs(want).max()


def test_head_maps_on_request(drafter, ids) -> None:
    found = score(drafter, ids, by_head=True)
    c = drafter.config
    assert found.by_head is not None
    assert found.by_head.shape == (c.layers, c.heads, -(-N // 32))
    tail = N % 32 or 32
    weight = (found.by_head[..., :-1].sum(-1) * 32) + found.by_head[..., -1] * tail
    np.testing.assert_allclose(weight, 1, rtol=1e-4)  # softmax weights of a query sum to one
    assert score(drafter, ids).by_head is None


def test_attention_may_be_left_to_device_and_length(drafter, ids) -> None:
    scorer = by_length(SCORERS.build("tail", {"queries": 4}))
    assert scorer.sparse == "auto"
    for tokens, sparse in ((SPARSE_TOKENS - 1, "off"), (SPARSE_TOKENS, "alpha:0.1")):
        resolved = scorer.resolve(tokens)
        assert (resolved.sparse, resolved.queries) == (sparse, 4)
    sparse = SCORERS.build("tail", {"sparse": "alpha:0.1"})
    assert by_length(sparse) is sparse is sparse.resolve(5)
    lexical = SCORERS.build("lexical")
    assert by_length(lexical) is lexical is lexical.resolve(1 << 20)
    assert score(drafter, ids, sparse="auto").densities == ()


@pytest.mark.parametrize(
    ("old", "sparse"),
    [
        ({"attention": "flashprefill", "alpha": 0.2}, "alpha:0.2"),
        ({"attention": "flashprefill"}, "alpha:0.1"),
        ({"attention": "flashprefill", "alpha": 0.1, "density": 0.05}, "density:0.05"),
        ({"attention": "flashprefill", "blocks": "constant:64"}, "blocks:64"),
        ({"attention": "auto", "alpha": 0.1, "density": None}, "alpha:0.1"),
        ({"attention": "auto"}, "auto"),
        ({"attention": "dense", "alpha": 0.1}, "off"),
    ],
)
def test_old_words_are_read_with_a_line(old, sparse) -> None:
    with pytest.warns(SpWarning, match=f"an old spelling; write sparse={sparse}"):
        assert SCORERS.build("tail", old).sparse == sparse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparse": "alpha:1.5"}, "alpha"),
        ({"sparse": "density:0.0"}, "density"),
        ({"attention": "dense", "density": 0.1}, "reads all blocks"),
        ({"sparse": "blocks:0"}, "count is 0"),
        ({"sparse": "energy"}, "sparse takes off, auto, alpha:THRESHOLD"),
        ({"sparse": "alpha:0.1:2"}, "sparse takes off"),
        ({"sparse": "blocks:many"}, "sparse blocks:many: COUNT in"),
        ({"depth": 0}, "depth"),
    ],
)
def test_bad_options_are_refused_at_once(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        SCORERS.build("tail", options)


def test_layers_that_are_not_there_are_refused(drafter, ids) -> None:
    for options in ({"layers": [99]}, {"depth": 99}, {"layers": [1], "depth": 1}, {"layers": []}):
        with pytest.raises(ConfigError):
            score(drafter, ids, **options)
    with pytest.raises(ConfigError, match="all layers"):
        SCORERS.build("lookahead", {"depth": 1})
