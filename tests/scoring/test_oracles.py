"""Oracles from behaviour against what they mean, computed by plain calls of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from retriever_files import ARCHS
from scorer_cases import KEY, NEEDLE, VALUE, ask, silently

from sp.arrays import Floats, Ints
from sp.errors import PromptError
from sp.models import Cache, Hooks, Model, decode_step, prefill
from sp.scoring import SCORERS, ScoreRequest, chunk_means
from sp.scoring.attention.attention import average_pool
from sp.scoring.likelihood import log_likelihoods
from sp.session.loaded import synthetic

N, SEED = 262, 3
Looked = list[tuple[Floats, ...]]
each_arch = pytest.mark.parametrize("arch", ARCHS)


@pytest.fixture
def asked(arch: str, retrievers: dict[str, Model]) -> ScoreRequest:
    """A prompt whose answer is `VALUE` tokens of its needle."""
    found = ask(retrievers[arch], N, seed=SEED)
    assert found.start // 32 not in (0, N // 32)
    return silently(found, progress=None)


@pytest.fixture(scope="module")
def whole(retrievers: dict[str, Model]) -> Callable[[str], Floats]:
    """What every chunk of a prompt changes, by architecture."""

    @cache
    def of(arch: str) -> Floats:
        request = silently(ask(retrievers[arch], N, seed=SEED), progress=None)
        return SCORERS.build("leave_one_out", {"among": 0, "answer_tokens": VALUE}).score(request).scores[::32]

    return of


@pytest.fixture(scope="module")
def looked(retrievers: dict[str, Model]) -> Callable[[str], Looked]:
    """Queries, keys of the prompt and of three tokens of its answer by layer, by architecture."""

    @cache
    def of(arch: str) -> Looked:
        request, model = ask(retrievers[arch], N, seed=SEED).request, retrievers[arch]
        seen: dict[int, list[tuple[Floats, Floats]]] = {}

        def look(layer: int, q: Floats, cache: Cache) -> None:
            seen.setdefault(layer, []).append((q, cache.keys(layer)[-len(q) :]))

        keys = model.new_cache(N + 3, "f32")
        logits = prefill(model, request.ids, request.positions, keys, rows=N, hooks=Hooks(look))
        for step in range(3):
            logits = decode_step(model, int(logits.argmax()), N + step, keys, hooks=Hooks(look))
        layers = [zip(*parts, strict=True) for parts in seen.values()]
        return [tuple(np.concatenate(each).astype(float) for each in both) for both in layers]

    return of


def answer_of(request: ScoreRequest, tokens: int) -> list[int]:
    """Greedy answer to the whole prompt."""
    model, n = request.model, len(request.ids)
    cache, found = model.new_cache(n + tokens), list[int]()
    logits = prefill(model, request.ids, request.positions, cache)
    while len(found) < tokens:
        found.append(int(logits.argmax()))
        logits = decode_step(model, found[-1], n + len(found) - 1, cache)
    return found


def likelihood(request: ScoreRequest, missing: Floats, answer: list[int]) -> float:
    """Log-probability of an answer, one token after the other, the missing tokens never seen."""
    model, n, kept = request.model, len(request.ids), ~missing
    cache, total = model.new_cache(n + len(answer)), 0.0
    logits = prefill(model, request.ids[kept], request.positions[kept], cache)
    for place, token in enumerate(answer):
        wide = logits.astype(np.float64) - float(logits.max())
        total += wide[token] - np.log(np.exp(wide).sum())
        logits = decode_step(model, token, n + place, cache)
    return float(total)


def chunk_of(request: ScoreRequest, size: int = 32) -> Ints:
    """Chunk of every token."""
    return np.arange(len(request.ids)) // size


@each_arch
def test_what_an_answer_loses_is_what_plain_calls_say(asked: ScoreRequest) -> None:
    half = np.zeros(N, bool)
    half[[*range(70, 90), *range(128, 160), *range(N - KEY, N)]] = True  # part of a chunk, a whole one, the question
    asked = replace(asked, protected=half)
    answer = answer_of(asked, VALUE)
    got = SCORERS.build("leave_one_out", {"among": 0, "answer_tokens": VALUE}).score(asked)
    assert list(got.generated) == answer
    whole, chunks = likelihood(asked, np.zeros(N, bool), answer), chunk_of(asked)
    wanted = [whole - likelihood(asked, (chunks == i) & ~half, answer) for i in range(chunks[-1] + 1) if i != 4]
    found = got.scores[::32]
    np.testing.assert_allclose(np.delete(found, 4), wanted, atol=5e-3 * max(wanted))
    assert found[4] < found[np.arange(len(found)) != 4].min()
    np.testing.assert_array_equal(got.scores, found[chunks])


@each_arch
def test_the_needles_chunk_is_missed_most(asked: ScoreRequest, arch: str, whole) -> None:
    needle = np.unique(chunk_of(asked)[asked.needle])
    changes = whole(arch)
    assert changes.argmax() in needle
    others = np.delete(changes, needle)
    assert changes.max() > 3
    assert np.abs(others[:-1]).max() < changes.max() / 3


@each_arch
def test_chunks_that_are_not_tried_come_behind_in_the_order_of_attention(asked: ScoreRequest, arch: str, whole) -> None:
    every = whole(arch)
    some = SCORERS.build("leave_one_out", {"among": 4, "answer_tokens": VALUE}).score(asked).scores[::32]
    seen = chunk_means(SCORERS.build("answer_attention", {"queries": VALUE}).score(asked).scores, 32)
    order = np.argsort(-seen)
    assert set(chunk_of(asked)[asked.needle]) & set(order[:4])
    np.testing.assert_allclose(some[order[:4]], every[order[:4]], atol=5e-3 * every.max())
    behind = some[order[4:]]
    assert behind.max() < some[order[:4]].min()
    assert (np.diff(behind) < 0).all()


@each_arch
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("heads", "layers"), [("max", "mean"), ("mean", "max"), ("mean", "mean"), ("max", "max")])
def test_attention_of_the_answer_is_its_formula(
    asked: ScoreRequest, arch: str, looked, last: bool, heads: str, layers: str
) -> None:
    """In float64, layer by layer: softmax over the prompt, nothing on text that is kept anyway, pooled, then heads,
    layers and the answer's tokens."""
    config, tokens = asked.model.config, 3
    asked = replace(asked, protected=asked.question | (np.arange(N) < 12))
    rows = slice(N - 1, N + tokens - 1) if last else slice(N, N + tokens)
    by_layer = []
    for q, k in looked(arch):
        q, k = q[rows], k[:N]
        of_heads = []
        for head in range(config.heads):
            energy = q[:, head] @ k[:, head // config.group].T / np.sqrt(config.head_dim)
            weights = np.exp(energy - energy.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            weights[:, [*range(12), *range(N - KEY, N)]] = 0
            of_heads.append(average_pool(weights, 13, "renormalise"))
        by_layer.append(getattr(np, heads)(of_heads, axis=0))
    wanted = getattr(np, layers)(by_layer, axis=0).mean(axis=0)
    options = {"queries": tokens, "last": last, "over_heads": heads, "over_layers": layers}
    got = SCORERS.build("answer_attention", options).score(asked)
    np.testing.assert_allclose(got.scores, wanted, atol=3e-3)  # the scorer's cache is f16
    assert np.corrcoef(got.scores, wanted)[0, 1] > 0.999


@pytest.mark.parametrize("arch", ARCHS[:1])
def test_what_ends_an_answer_is_no_part_of_it(asked: ScoreRequest) -> None:
    answer = answer_of(asked, VALUE)
    ended = replace(asked, eos_ids=frozenset({answer[2]}))
    for name, field in (("answer_attention", "queries"), ("leave_one_out", "answer_tokens")):
        got = SCORERS.build(name, {field: 16}).score(ended)
        assert list(got.generated) == answer[:3]
        want = SCORERS.build(name, {field: 2}).score(asked)
        np.testing.assert_allclose(got.scores, want.scores, rtol=1e-4, atol=1e-5)
    alone = replace(asked, eos_ids=frozenset({answer[0]}))
    got = SCORERS.build("answer_attention").score(alone)
    assert got.generated == (answer[0],)
    np.testing.assert_array_equal(got.scores, SCORERS.build("answer_attention", {"queries": 1}).score(asked).scores)


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-qwen35"])
def test_what_is_left_stands_where_it_stood(shape: str) -> None:
    """By models of random weights, to which positions matter; an answer of three tokens after two gaps each."""
    model = synthetic(shape, "q8_0", device="cpu").model
    rng = np.random.default_rng(1)
    ids, answer, nothing = rng.integers(0, model.config.vocab, 90), rng.integers(0, model.config.vocab, 3), np.zeros(90)
    asked = ScoreRequest(model, ids, np.arange(90), nothing == 1, nothing == 1)
    gaps = np.isin(np.arange(90), [2, 3, *range(20, 40)]), np.isin(np.arange(90), [*range(30, 50), 60])
    likely = log_likelihoods(model, ids, asked.positions, answer, gaps)
    wanted = [likelihood(asked, each, answer.tolist()) for each in (*gaps, nothing == 1)]
    np.testing.assert_allclose(likely, wanted, atol=2e-3)
    closed = replace(asked, ids=ids[~gaps[1]], positions=np.arange(69))
    assert abs(likelihood(closed, nothing[:69] == 1, answer.tolist()) - wanted[1]) > 1e-2


def test_an_answer_ends_where_the_context_does() -> None:
    model = synthetic("tiny-qwen3", "q8_0", device="cpu").model
    model.config = replace(model.config, context=43)
    ids, nothing = np.random.default_rng(2).integers(0, model.config.vocab, 43), np.zeros(43, bool)

    def asked(n: int) -> ScoreRequest:
        return ScoreRequest(model, ids[:n], np.arange(n), nothing[:n], nothing[:n])

    for name in ("answer_attention", "leave_one_out", "lookahead"):
        found = SCORERS.build(name).score(asked(40))
        assert len(found.generated) == 3
        assert np.isfinite(found.scores).all()
    assert SCORERS.build("lookahead").score(asked(43)).generated == ()
    with pytest.raises(PromptError, match="outside the model's context of 43 tokens") as caught:
        SCORERS.build("leave_one_out").score(asked(43))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arch", ARCHS[:1])
def test_work_is_told_as_it_is_done(asked: ScoreRequest) -> None:
    told: list[int] = []
    SCORERS.build("leave_one_out", {"among": 4, "answer_tokens": 2}).score(replace(asked, progress=told.append))
    assert sum(told) == N * asked.model.config.layers
    assert len(told) >= 6
    assert min(told) > 0


def test_oracles_say_so() -> None:
    known = {name for name in SCORERS if SCORERS.class_of(name).oracle}
    assert {"oracle", "answer_attention", "leave_one_out"} <= known
    assert not known & {"tail", "lookahead", "target_attention", "lexical", "random"}
    assert NEEDLE == KEY + VALUE
