"""Bias and penalties against their definitions in float64, for greedy and sampled answers, with constraints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import LEAST, agree, penalised, shares

from sp.decode import Chooser, SamplingDecoder
from sp.ops.sampling.biased import Penalties, PenaltyState
from sp.ops.sampling.sample import Sampling

VOCAB = 23
tokens = st.integers(0, VOCAB - 1)
amounts = st.floats(-2, 2, width=16)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict, list[int], list[int]]:
    """Penalties, a prompt, and an answer so far."""
    given = {
        "presence": draw(amounts),
        "frequency": draw(amounts),
        "repeat": draw(st.floats(0.25, 3, width=16)),
        "last": draw(st.sampled_from([-1, 0, 1, 3, 64])),
        "bias": draw(st.dictionaries(tokens, st.floats(-100, 100, width=16), max_size=5)),
    }
    return given, draw(st.lists(tokens, max_size=12)), draw(st.lists(tokens, max_size=30))


def said(given: dict, prompt: Sequence[int], answer: Sequence[int]) -> PenaltyState:
    found = PenaltyState(Penalties(**given, prompt=lambda: prompt))
    for token in answer:
        found.take(token)
    return found


@given(cases(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_logits_are_as_defined(case, seed: int) -> None:
    logits = (4 * np.random.default_rng(seed).standard_normal((1, VOCAB))).astype(np.float32)
    before = logits.copy()
    found = said(*case).apply(logits)
    np.testing.assert_allclose(found[0], penalised(logits[0], *case), rtol=2e-6, atol=2e-5)
    np.testing.assert_array_equal(logits, before)
    assert found.dtype == np.float32


def test_known_answers() -> None:
    """By hand: a bias before `repeat`, which sees the prompt; the counts of the others do not."""
    logits = np.array([[2.0, -2.0, 1.0, 0.5]], np.float32)
    given = {"presence": 0.5, "frequency": 0.25, "repeat": 2.0, "bias": {3: -1.5}}
    assert said(given, [0, 1], [3, 3]).apply(logits).tolist() == [[1.0, -4.0, 1.0, -3.0]]
    assert said({**given, "last": 1}, [0, 1], []).apply(logits).tolist() == [[2.0, -4.0, 1.0, -1.0]]
    assert said({**given, "last": 0}, [0, 1], []).apply(logits).tolist() == [[2.0, -2.0, 1.0, -1.0]]


def test_the_prompt_is_asked_for_only_where_it_matters() -> None:
    def nobody() -> list[int]:
        raise AssertionError("asked")

    for quiet in ({"presence": 1.0}, {"bias": {1: 1.0}}, {"repeat": 1.0}, {"repeat": 2.0, "last": 0}):
        PenaltyState(Penalties(**quiet, prompt=nobody))
    assert not Penalties().any
    assert not Penalties(repeat=2.0, last=0).any
    assert not Penalties(bias={1: 1.0}).counting


def test_what_is_drawn_follows_the_penalised_distribution() -> None:
    logits = (2 * np.random.default_rng(5).standard_normal((1, 40))).astype(np.float32)
    given = {"repeat": 1.7, "bias": {2: 3.0, 11: -100.0}}
    best = int(logits.argmax())
    chooser = SamplingDecoder(0.8, top_p=0.9).chooser(3, penalties=Penalties(**given, prompt=lambda: [best, 7, 2]))
    first = [int(chooser.choose(logits)[0])]
    expected = shares(penalised(logits[0], given, [best, 7, 2], []).astype(np.float32), 0.8, top_p=0.9)
    for seed in range(1000):
        again = SamplingDecoder(0.8, top_p=0.9).chooser(seed, penalties=Penalties(**given, prompt=lambda: [best, 7, 2]))
        first.append(int(again.choose(logits)[0]))
    assert agree(first, expected) > LEAST
    assert agree(first, shares(logits[0], 0.8, top_p=0.9) + 1e-12) < LEAST


class Odd:
    """Tokens 1 and 3 alone."""

    def allowed(self) -> np.ndarray:
        return np.array([0b1010], np.uint32)

    def take(self, token: int) -> None:
        assert token in (1, 3)


@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=str)
def test_a_constraint_has_the_last_word_and_logprobs_are_the_models_own(sampling) -> None:
    logits = np.array([[3.0, 2.0, 1.0, 0.5]], np.float32)
    told: list = []
    penalties = Penalties(frequency=1.0, bias={0: 100.0, 2: 50.0})
    chooser = Chooser(sampling, 0, penalties=penalties, constraint=Odd(), on_choice=told.append, top=2)
    found = [int(chooser.choose(logits)[0]) for _ in range(12)]
    assert set(found) == {1, 3}
    assert sampling is not None or found[:5] == [1, 1, 3, 1, 3]
    own = np.log(shares(logits[0]))
    np.testing.assert_allclose([each.logprob for each in told], own[found], rtol=1e-5)
    assert {tuple(each.tokens.tolist()) for each in told} == {(0, 1)}


def test_greedy_goes_round_what_it_has_said() -> None:
    logits = np.array([[1.0, 0.9, 0.8, 0.0]], np.float32)
    chooser = Chooser(None, 0, penalties=Penalties(presence=0.5))
    assert [int(chooser.choose(logits)[0]) for _ in range(5)] == [0, 1, 2, 0, 0]


def test_long_answers_grow_the_arrays() -> None:
    rng = np.random.default_rng(1)
    answer, logits = rng.permutation(500).tolist(), rng.standard_normal((1, 500)).astype(np.float32)
    given = {"frequency": 0.5, "repeat": 1.1, "last": 90}
    found = said(given, [1, 2], answer).apply(logits)[0]
    np.testing.assert_allclose(found, penalised(logits[0], given, [1, 2], answer), rtol=1e-5, atol=1e-6)
