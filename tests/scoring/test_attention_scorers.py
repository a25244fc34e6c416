"""`tail` and `lookahead` against the same formula over all stored queries and keys of a whole prefill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import token_task

from sp.arrays import Floats, Ints
from sp.models import Cache, Hooks, Model, decode_step, load_model, prefill
from sp.ops.rope import rope
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.attention import Reduction, average_pool


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


def request_for(model: Model, ids: Ints, seed: int = 0) -> ScoreRequest:
    question = np.zeros(len(ids), bool)
    question[-3:] = True
    needle = np.zeros(len(ids), bool)
    needle[40:50] = True
    return ScoreRequest(model, ids, np.arange(len(ids)), question, needle, seed=seed)


def stored(model: Model, ids: Ints, steps: int) -> tuple[dict[int, list[Floats]], dict[int, list[Floats]], list[int]]:
    """Every layer's q and k of a prefill of all rows and of `steps` greedy decode steps."""
    queries: dict[int, list[Floats]] = {}
    keys: dict[int, list[Floats]] = {}

    def look(layer: int, q: Floats, cache: Cache) -> None:
        queries.setdefault(layer, []).append(q)
        keys.setdefault(layer, []).append(cache.keys(layer)[-len(q) :])

    cache = model.new_cache(len(ids) + steps, "f32")
    logits = prefill(model, ids, np.arange(len(ids)), cache, rows=len(ids), hooks=Hooks(look))
    tokens = []
    for step in range(steps):
        tokens.append(int(logits.argmax()))
        logits = decode_step(model, tokens[-1], len(ids) + step, cache, hooks=Hooks(look))
    return queries, keys, tokens


def slow_importance(model: Model, q: Floats, keys: list[Floats], where: Ints, n: int, rotary: str) -> Floats:
    """float64: pool, then max over heads of all layers, then mean over queries; q is (layers, queries, heads, d)."""
    config = model.config
    best = np.zeros((len(where), n))
    for layer, k in enumerate(keys):
        ql, kl = q[layer], k
        if rotary == "none":
            ql = rope(ql, -where, config.rope)
            kl = rope(kl, -np.arange(n), config.rope)
        for head in range(config.heads):
            logits = ql[:, head].astype(float) @ kl[:, head // config.group].astype(float).T / np.sqrt(config.head_dim)
            logits[np.arange(n)[None] > where[:, None]] = -np.inf
            weights = np.exp(logits - logits.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            best = np.maximum(best, average_pool(weights.astype(np.float32), 13, "renormalise"))
    return best.mean(0)


@pytest.mark.parametrize("rotary", ["post", "none"])
@pytest.mark.parametrize("n", [5, 600, 1025])
def test_tail_scored_layer_by_layer_equals_scoring_everything_stored(drafter: Model, n: int, rotary: str) -> None:
    ids = np.random.default_rng(n).integers(0, 256, n)
    queries, keys, _ = stored(drafter, ids, 0)
    last = min(8, n)
    q = np.stack([np.concatenate(queries[layer])[-last:] for layer in queries])
    k = [np.concatenate(keys[layer]) for layer in keys]
    want = slow_importance(drafter, q, k, np.arange(n - last, n), n, rotary)
    got = SCORERS.build("tail", {"rotary": rotary}).score(request_for(drafter, ids))
    # The drafter's own cache is f16, so its later layers see slightly rounded inputs.
    np.testing.assert_allclose(got.scores, want, atol=3e-3)
    assert got.by_layer is not None
    assert got.by_layer.shape == (drafter.config.layers, -(-n // 32))


@pytest.mark.parametrize("behind", [0, 1, 9, 40])
def test_tail_asks_before_what_follows_the_question(drafter: Model, behind: int) -> None:
    n = 330
    request = replace(request_for(drafter, np.random.default_rng(n).integers(0, 256, n)), content_end=n - behind)
    end = n - behind
    first = {name: getattr(request, name)[:end] for name in ("ids", "positions", "question", "needle")}
    scorer = SCORERS.build("tail")
    want, got = scorer.score(replace(request, content_end=None, **first)), scorer.score(request)
    np.testing.assert_array_equal(got.scores[:end], want.scores)
    assert got.scores.shape == (n,)
    assert not got.scores[end:].any()
    assert got.by_layer is not None
    assert got.by_layer.shape == (drafter.config.layers, -(-n // 32))
    whole = SCORERS.build("tail", {"queries": "question"})
    np.testing.assert_array_equal(whole.score(request).scores, whole.score(replace(request, content_end=None)).scores)


@pytest.mark.parametrize("rotary", ["post", "none"])
def test_lookahead_uses_the_last_prompt_token_and_the_generated_ones(drafter: Model, rotary: str) -> None:
    task = token_task(700, 8, seed=3)
    n = len(task.ids)
    queries, keys, tokens = stored(drafter, task.ids, 3)
    q = np.stack([np.concatenate(queries[layer])[n - 1 : n + 3] for layer in queries])
    k = [np.concatenate(keys[layer])[:n] for layer in keys]
    # Generated queries see prompt keys only, all of them.
    best = slow_importance_of_generated(drafter, q, k, n, rotary)
    got = SCORERS.build("lookahead", {"queries": 4, "rotary": rotary}).score(request_for(drafter, task.ids))
    assert list(got.generated) == tokens == task.value[:3]
    np.testing.assert_allclose(got.scores, best, atol=3e-3)


def slow_importance_of_generated(model: Model, q: Floats, keys: list[Floats], n: int, rotary: str) -> Floats:
    where = np.arange(n - 1, n - 1 + q.shape[1])
    if rotary == "none":
        config = model.config
        q = np.stack([rope(layer, -where, config.rope) for layer in q])
        keys = [rope(k, -np.arange(n), config.rope) for k in keys]
    return slow_importance(model, q, keys, np.maximum(where, n - 1), n, "post")


def test_one_look_ahead_query_generates_nothing_and_equals_a_tail_of_one(drafter: Model) -> None:
    ids = np.random.default_rng(1).integers(0, 256, 300)
    request = request_for(drafter, ids)
    ahead = SCORERS.build("lookahead", {"queries": 1}).score(request)
    tail = SCORERS.build("tail", {"queries": 1}).score(request)
    assert ahead.generated == ()
    np.testing.assert_allclose(ahead.scores, tail.scores, atol=1e-3)


def test_look_ahead_stops_at_the_end_of_generation(drafter: Model) -> None:
    task = token_task(300, 4, seed=5)
    request = request_for(drafter, task.ids)
    stopped = ScoreRequest(**{**vars(request), "eos_ids": frozenset({task.value[1]})})
    got = SCORERS.build("lookahead", {"queries": 8}).score(stopped)
    assert list(got.generated) == task.value[:2]


@pytest.mark.parametrize("name", ["tail", "lookahead"])
def test_the_needle_ranks_first(drafter: Model, name: str) -> None:
    task = token_task(2000, 20, seed=9)
    scores = SCORERS.build(name, {"queries": 3}).score(request_for(drafter, task.ids)).scores
    inside = scores[task.start : task.start + 7].max()
    outside = np.concatenate([scores[: task.start - 32], scores[task.start + 39 : -64]])
    assert inside > 1.5 * outside.max()  # keys that share a token with the right one come second


def test_controls_do_what_they_say(drafter: Model) -> None:
    ids = np.random.default_rng(2).integers(0, 256, 200)
    request = request_for(drafter, ids)
    assert set(np.flatnonzero(SCORERS.build("oracle").score(request).scores)) == set(range(40, 50))
    ends = SCORERS.build("head_tail").score(request).scores
    assert (np.diff(ends)[:99] < 0).all()
    assert (np.diff(ends)[100:] > 0).all()
    draws = SCORERS.build("random").score(request).scores
    assert len(set(draws.tolist())) == 7
    other = SCORERS.build("random").score(request_for(drafter, ids, seed=1)).scores
    assert draws[0] != other[0]
    late = SCORERS.build("recency").score(request).scores
    assert (np.diff(late) > 0).all()
    spread = SCORERS.build("uniform", {"run": 10}).score(request).scores[::10]
    for kept in (2, 4, 5, 10):  # chunks of 20 that are kept; gaps of the first of them differ by at most two to one
        chosen = np.sort(np.argsort(-spread, kind="stable")[:kept])
        gaps = np.diff(np.append(chosen, 20 + chosen[0]))
        assert gaps.max() <= 2 * gaps.min() + 1


def test_default_reduction_is_that_of_the_paper() -> None:
    assert Reduction() == Reduction("pool,heads,queries", "max", "mean", 13, "renormalise")
