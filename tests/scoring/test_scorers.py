"""Scorers against their formulas, written out in float64 or by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retriever_files import token_task
from scorer_cases import ask, silently

from sp.errors import ConfigError
from sp.models import Hooks, Model, load_model, prefill, prefill_layer_major, stream_layer_major
from sp.ops.attention.importance import attention_rows
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.scoring.attention.heads import HeadMap, model_key

N = 300


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


@pytest.fixture(scope="module")
def request_(drafter: Model) -> ScoreRequest:
    return silently(ask(drafter, N), progress=None)


def tail_weights(request: ScoreRequest, queries: int, *, logits: bool = False) -> np.ndarray:
    """float64 (layers, heads, queries, tokens) from a whole prefill with all keys kept."""
    kept: dict[int, np.ndarray] = {}
    cache = request.model.new_cache(N)
    prefill_layer_major(
        request.model, request.ids, request.positions, cache, rows=queries,
        hooks=Hooks(lambda layer, q, _: kept.update({layer: q[-queries:].copy()})),
    )  # fmt: skip
    rows = []
    for layer, q in kept.items():
        at = cache.stored(layer)
        rows.append(attention_rows(q, at, logits=logits))
    return np.stack(rows).astype(np.float64)


def pooled(row: np.ndarray, width: int, edges: str = "renormalise") -> np.ndarray:
    half = width // 2
    windows = [row[max(0, j - half) : j + half + 1] for j in range(len(row))]
    return np.array([w.sum() / (width if edges == "zero" else len(w)) for w in windows])


def score(request: ScoreRequest, name: str, **options: Any) -> Importance:
    return SCORERS.build(name, options).score(request)


def test_snapkv_is_the_windows_mean_pooled_in_each_head(request_) -> None:
    weights = tail_weights(request_, 32)[..., :-32].mean(axis=2).reshape(-1, N - 32)
    whole = np.concatenate([weights, np.zeros((len(weights), 32))], axis=1)
    want = np.max([pooled(row, 7) for row in whole], axis=0)[: N - 32]
    got = score(request_, "snapkv").scores
    np.testing.assert_allclose(got[:-32], want, atol=1e-5)
    assert (got[-32:] == got.max()).all()


def test_gemfilter_is_the_mean_of_one_layers_logits(request_) -> None:
    logits = tail_weights(request_, 1, logits=True)
    want = pooled(logits[1, :, 0].mean(axis=0), 5, "zero")
    got = score(request_, "gemfilter").scores
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_specpc_pools_last_by_a_maximum(request_) -> None:
    weights = tail_weights(request_, 8)
    best = weights.max(axis=(0, 1, 2))
    want = [best[max(0, j - 32) : j + 32].max() for j in range(N)]
    options = {"order": "heads,queries,pool", "over_queries": "max", "pooling": "max", "pool": 64}
    np.testing.assert_allclose(score(request_, "tail", **options).scores, want, rtol=1e-5)


def test_masked_sinks_leave_the_rest_to_sum_to_one(request_) -> None:
    weights = tail_weights(request_, 8)
    weights[..., :4] = weights[..., -20:] = 0
    for renormalise in (False, True):
        rows = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-6) if renormalise else weights
        want = np.mean([np.max([pooled(rows[i, h, q], 13) for i in range(2) for h in range(rows.shape[1])], axis=0)
                        for q in range(8)], axis=0)  # fmt: skip
        got = score(request_, "sink_masked", recent=20, renormalise=renormalise).scores
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


def test_entropy_weighs_heads(request_) -> None:
    weights = tail_weights(request_, 8)
    entropy = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1, keepdims=True)
    for beta, factor in ((None, 1 - entropy / np.log(N)), (0.7, np.exp(-0.7 * entropy))):
        want = pooled((weights * factor).mean(axis=(0, 1, 2)), 13)
        np.testing.assert_allclose(score(request_, "entropy_weight", beta=beta).scores, want, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("vote", ["count", "reciprocal"])
def test_heads_vote_for_chunks(request_, vote) -> None:
    weights = tail_weights(request_, 8).reshape(-1, N)
    total = np.zeros(10)
    for row in weights:
        means = [row[i : i + 32].mean() for i in range(0, N, 32)]
        order = np.argsort(np.negative(means), kind="stable")
        for rank, chunk in enumerate(order):
            total[chunk] += (rank < 2) if vote == "count" else 1 / (61 + rank)
    got = score(request_, "head_vote", vote=vote, top=0.2).scores
    np.testing.assert_allclose(got, np.repeat(total / len(weights), 32)[:N], rtol=0.05 if vote == "count" else 1e-3)


def test_self_information_is_the_loss_of_each_token(request_, drafter) -> None:
    got = score(request_, "self_information").scores
    assert got[0] == 0
    for at in (1, 7, 150, N - 1):
        logits = prefill(drafter, request_.ids[:at], np.arange(at), drafter.new_cache(at)).astype(np.float64)
        want = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[request_.ids[at]]
        assert got[at] == pytest.approx(want, abs=2e-2 * max(1.0, want))


def test_a_token_that_had_to_come_is_no_information(drafter) -> None:
    rng = np.random.default_rng(0)
    ids = np.tile(rng.permutation(256)[:60], 3)
    nothing = np.zeros(len(ids), bool)
    got = score(ScoreRequest(drafter, ids, np.arange(len(ids)), nothing, nothing), "self_information").scores
    assert got[70:].max() < 0.5 < 1 < got[10:60].min()


def test_embedding_is_a_cosine_of_means(request_, drafter) -> None:
    x = stream_layer_major(drafter, request_.ids, request_.positions, drafter.new_cache(N, layers=1)).astype(np.float64)
    chunks = np.array([x[i : i + 32].mean(0) for i in range(0, N, 32)])
    asked = x[request_.question].mean(0)
    for centred in (False, True):
        c, q = (v - centred * chunks.mean(0) for v in (chunks, asked))
        want = c @ q / np.linalg.norm(c, axis=1) / np.linalg.norm(q)
        got = score(request_, "embedding", centred=centred).scores
        np.testing.assert_allclose(got, np.repeat(want, 32)[:N], atol=1e-4)


def test_the_stream_is_what_the_head_takes(request_, drafter) -> None:
    x = stream_layer_major(drafter, request_.ids, request_.positions, drafter.new_cache(N, layers=1))
    want = prefill(drafter, request_.ids, request_.positions, drafter.new_cache(N))
    np.testing.assert_allclose(drafter.head(x[-1:])[0], want, rtol=1e-4, atol=1e-4)


def plain(ids: list[int], asked: int) -> ScoreRequest:
    """A request without a model; the last tokens are the question."""
    n = len(ids)
    question = np.arange(n) >= n - asked
    return ScoreRequest(None, np.array(ids), np.arange(n), question, np.zeros(n, bool))  # type: ignore[arg-type]


def test_bm25_by_hand() -> None:
    # Chunks [1 2 3 4] [1 1 5 6] [7 8 9 9]; the question asks for 1 and 5.
    got = score(plain([1, 2, 3, 4, 1, 1, 5, 6, 7, 8, 9, 9, 1, 5], 2), "bm25", chunk_size=4).scores
    n, mean = 4, 12 / 4  # the last chunk is the question's, with no token of its own

    def term(holding: int, count: int) -> float:
        idf = np.log1p((n - holding + 0.5) / (holding + 0.5))
        return float(idf * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * 4 / mean)))

    want = [term(2, 1)] * 4 + [term(2, 2) + term(1, 1)] * 4 + [0.0] * 6
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_anchors_by_hand() -> None:
    filler = list(range(100, 148))
    ids = [*filler[:8], 1, 2, 3, 4, *filler[8:36], 5, 6, 7, 8, *filler[36:40], 5, 6, 7, 8, 50, 1, 2, 3, 4, 5, 6, 7, 8]
    request = plain(ids, 8)
    marks = score(request, "lexical", chunk_size=4, radius=1).scores[::4]
    # 1 2 3 4 occurs once in the text, in chunk 2; 5 6 7 8 twice, from chunk 10 and 12 on; runs across are in no text.
    want = np.zeros(len(marks))
    want[[1, 2, 3]] = 0.5, 1, 0.5
    want[[9, 10, 11, 12, 13]] = 0.25, 0.5, 0.25, 0.5, 0.25
    np.testing.assert_allclose(marks, want)
    rare = score(request, "lexical", chunk_size=4, radius=0, most_hits=1).scores
    assert set(np.flatnonzero(rare)) == {8, 9, 10, 11}
    last = score(request, "lexical", chunk_size=4, radius=0, asked=4).scores
    assert set(np.flatnonzero(last) // 4) == {10, 12}


def test_anchors_come_before_attention_and_keep_its_order(request_) -> None:
    marks = score(request_, "lexical", asked=5).scores
    tail = score(request_, "tail", rotary="none", order="heads,queries,pool").scores
    got = score(request_, "anchored", asked=5).scores
    marked = marks > 0
    assert marked.any()
    assert got[marked].min() > got[~marked].max()
    order = np.argsort(tail[~marked])
    assert (np.diff(got[~marked][order]) >= 0).all()


def test_only_generated_queries_leave_the_last_prompt_token_out(drafter) -> None:
    task = token_task(N, 8, seed=3)
    nothing = np.zeros(N, bool)
    request = ScoreRequest(drafter, task.ids, np.arange(N), nothing, nothing)
    both = score(request, "lookahead", queries=3)
    alone = score(request, "lookahead", queries=2, last=False)
    first = score(request, "lookahead", queries=1)
    assert alone.generated == both.generated
    np.testing.assert_allclose(3 * both.scores, 2 * alone.scores + first.scores, rtol=1e-4, atol=1e-6)


def test_retrieval_heads_are_those_of_the_map(request_, drafter, tmp_path) -> None:
    weights = tail_weights(request_, 8)
    HeadMap(model_key(drafter), {0: (0.0, 0.3, 0.0, 0.05), 1: (0.0, 0.0, 0.9, 0.0)}).save(tmp_path / "map.json")
    want = pooled((weights[0, 1] + weights[1, 2]).mean(axis=0), 13)
    got = score(request_, "retrieval_heads", map=str(tmp_path / "map.json")).scores
    np.testing.assert_allclose(got / got.max(), want / want.max(), rtol=1e-3, atol=1e-6)
    only = score(request_, "retrieval_heads", map=str(tmp_path / "map.json"), threshold=0.5).scores
    want = pooled(weights[1, 2].mean(axis=0), 13)
    np.testing.assert_allclose(only / only.max(), want / want.max(), rtol=1e-3, atol=1e-6)
    with pytest.raises(ConfigError, match="no retrieval head is in a layer that counts"):
        score(request_, "retrieval_heads", map=str(tmp_path / "map.json"), threshold=0.5, depth=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "make a map of heads"),
        ("not json", "not a JSON object .* make a map of heads"),
        ({"schema": "sp-head-map/0"}, "of schema 'sp-head-map/0'"),
        ({"scores": [1]}, "scores must be an object, not a list; make a map of heads"),
        ({"model": "qwen3-28-16-000000000000"}, "of another model"),
        ({"scores": {"0": [0.01] * 4}}, "no head has a retrieval score above 0.1"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_in_one_line(request_, drafter, tmp_path, change, message) -> None:
    path = tmp_path / "map.json"
    if isinstance(change, dict):
        HeadMap(model_key(drafter), {0: (0.5,) * 4}).save(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    elif change is not None:
        path.write_text(change)
    with pytest.raises(ConfigError, match=message) as caught:
        score(request_, "retrieval_heads", map=str(path))
    assert "\n" not in str(caught.value)


def test_a_map_comes_back_as_it_was_saved(tmp_path) -> None:
    made = HeadMap("qwen3-2-2-0123456789ab", {0: (0.0, 0.25), 3: (1.0, 0.5)}, {"prompts": 3})
    made.save(tmp_path / "map.json")
    assert HeadMap.load(tmp_path / "map.json") == made
