"""`KeyValueScorer` gives its subclasses what the drafter's attention reads, and makes their heat maps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from scorer_cases import ask

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models import Cache, Hooks, Model, SessionCache, load_model, prefill
from sp.scoring import SCORERS, PrefixKeys, ScoreRequest
from sp.scoring.attention.attention import Rotary
from sp.scoring.attention.key_values import AttentionInputs, KeyValueScorer

TOKENS = 262


class Arrays(NamedTuple):
    """Arrays of one layer, made while they are in the cache, which holds one layer at a time."""

    queries: Floats
    keys: Floats
    values: Floats
    weights: Floats
    group: int


@dataclass(frozen=True)
class WeightScorer(KeyValueScorer):
    """Attention weights of the queries, head by head, and the arrays of every layer."""

    seen: ClassVar[dict[int, Arrays]]  # by layer, of each scorer by itself

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seen", {})

    def score_layer(self, inputs: AttentionInputs) -> Floats:
        self.seen[inputs.layer] = Arrays(inputs.queries, inputs.keys, inputs.values, inputs.weights(), inputs.group)
        return inputs.weights().mean(axis=1)


@dataclass(frozen=True)
class LastLayerWithoutRotary(WeightScorer):
    layers: ClassVar[tuple[int, ...]] = (-1,)
    rotary: ClassVar[Rotary] = "none"


@dataclass(frozen=True)
class OneNumber(KeyValueScorer):
    """A scorer that returns an array of the wrong shape, or numbers that are not finite."""

    shape: tuple[int, ...] = ()

    def score_layer(self, inputs: AttentionInputs) -> Floats:
        return np.full(self.shape or (len(inputs.keys),), np.nan, np.float32)


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


@pytest.fixture
def request_of_question(drafter: Model) -> ScoreRequest:
    return replace(ask(drafter, TOKENS).request, progress=None)


@pytest.mark.parametrize("scorer", [WeightScorer(), LastLayerWithoutRotary()], ids=["all", "last"])
def test_weights_are_those_of_the_tail_scorer(scorer: WeightScorer, request_of_question: ScoreRequest) -> None:
    got = scorer.score(replace(request_of_question, by_head=True))
    options = {"queries": "question", "over_heads": "mean", "pool": 1, "rotary": scorer.rotary}
    want = SCORERS.build("tail", options | ({} if scorer.layers is None else {"layers": [-1]}))
    np.testing.assert_allclose(got.scores, want.score(request_of_question).scores, atol=1e-6)
    assert got.by_layer is not None
    assert got.by_head is not None
    np.testing.assert_allclose(got.by_head.mean(axis=1), got.by_layer, atol=1e-6)
    np.testing.assert_allclose(got.by_layer[0, 0], np.mean(scorer.seen[min(scorer.seen)].weights[..., :32]), atol=1e-6)


def test_arrays_are_those_of_the_cache(drafter: Model, request_of_question: ScoreRequest) -> None:
    scorer, queries = WeightScorer(), dict[int, Floats]()
    scorer.score(request_of_question)

    def look(layer: int, q: Floats, cache: Cache) -> None:
        queries[layer] = q

    cache = drafter.new_cache(TOKENS, "f32")
    prefill(drafter, request_of_question.ids, np.arange(TOKENS), cache, rows=TOKENS, hooks=Hooks(look))
    assert sorted(scorer.seen) == list(drafter.config.attention_layers)
    for layer, inputs in scorer.seen.items():
        keys, values = cache.stored(layer).model_rows()
        # The cache of the scorer has float16, so later layers see inputs that are slightly rounded.
        for got, want in ((inputs.keys, keys), (inputs.values, values), (inputs.queries, queries[layer][-5:])):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want, atol=2e-2 * np.abs(want).max())
        assert inputs.group == drafter.config.group
        heads = inputs.keys.repeat(inputs.group, axis=1)
        logits = np.einsum("qhd,thd->hqt", inputs.queries, heads) / np.sqrt(drafter.config.head_dim)
        logits[:, np.arange(TOKENS)[None] > np.arange(TOKENS - 5, TOKENS)[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(inputs.weights, weights / weights.sum(axis=-1, keepdims=True), atol=1e-5)


def test_values_stay_with_rotary_embedding_left_out(drafter: Model, request_of_question: ScoreRequest) -> None:
    bare, plain = LastLayerWithoutRotary(), WeightScorer()
    bare.score(request_of_question)
    plain.score(request_of_question)
    layer = drafter.config.attention_layers[-1]
    np.testing.assert_array_equal(bare.seen[layer].values, plain.seen[layer].values)
    assert not np.allclose(bare.seen[layer].keys, plain.seen[layer].keys)


def test_tokens_behind_the_question_score_zero(request_of_question: ScoreRequest) -> None:
    question = np.zeros(TOKENS, bool)
    question[200:230] = True
    got = WeightScorer().score(replace(request_of_question, question=question))
    assert got.scores.shape == (TOKENS,)
    assert not got.scores[230:].any()
    assert got.scores[:230].all()
    assert got.by_layer is not None
    assert got.by_layer.shape[1] == -(-TOKENS // 32)


def test_a_conversation_reads_new_tokens_alone(drafter: Model, request_of_question: ScoreRequest) -> None:
    scorer, told = WeightScorer(), list[int]()
    layers = scorer.prefix_layers(drafter.config)
    assert layers is not None
    request = replace(request_of_question, keys=PrefixKeys(SessionCache(layers)), progress=told.append)
    first = scorer.score(request)
    assert sum(told) == TOKENS * drafter.config.layers
    told.clear()
    again = scorer.score(request)
    assert sum(told) == 5 * drafter.config.layers, "only the queries are computed again"
    np.testing.assert_allclose(again.scores, first.scores, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3,), rf"scorer one_number: score_layer must return \(tokens,\) or \(heads, tokens\) for {TOKENS} tokens"),
        ((1, 1, TOKENS), "not an array of shape"),
        ((), "scorer one_number: score_layer returned numbers that are not finite"),
    ],
)
def test_wrong_arrays_are_one_line(
    shape: tuple[int, ...], message: str, request_of_question: ScoreRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SCORERS, "_classes", dict(SCORERS._known()) | {"one_number": OneNumber})
    with pytest.raises(ConfigError, match=message) as caught:
        OneNumber(shape=shape).score(request_of_question)
    assert "\n" not in str(caught.value)
