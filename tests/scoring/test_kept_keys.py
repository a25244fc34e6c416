"""Scorers that go on from kept keys find what they find in a first reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scorer_cases import CASES, DOCUMENTED, MATRIX, ask, with_map

from sp.models import Model, SessionCache, load_model
from sp.scoring import SCORERS, PrefixKeys, Scorer, ScoreRequest
from sp.scoring.base import ModelFreeScorer

TOKENS = 390
CANNOT = {"lookahead", "answer_attention", "leave_one_out", "cross_attention", "self_information", "embedding"}


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


@pytest.fixture(scope="module")
def hybrid(retriever_target: Path) -> Model:
    return load_model(retriever_target)


def first_tokens(request: ScoreRequest, tokens: int) -> ScoreRequest:
    """An earlier prompt, which asks with its last tokens."""
    part = {name: getattr(request, name)[:tokens] for name in ("ids", "positions", "question", "needle")}
    part["question"] = np.arange(tokens) >= tokens - 5
    return replace(request, **part)


def trail_of(scorer: Scorer, model: Model) -> SessionCache | None:
    layers = scorer.prefix_layers(model.config)
    return None if layers is None else SessionCache(layers)


def test_every_scorer_says_whether_it_can(drafter: Model, tmp_path: Path) -> None:
    runs = {name for name in DOCUMENTED if not issubclass(SCORERS.class_of(name), ModelFreeScorer)}
    made = {name: SCORERS.build(name, with_map(name, {}, drafter, tmp_path)) for name in runs}
    cannot = {name for name, scorer in made.items() if scorer.prefix_layers(drafter.config) is None}
    assert cannot == CANNOT


@pytest.mark.parametrize(
    ("name", "options"), [(n, o) for n, o in MATRIX if n not in CANNOT and CASES[n].reads and "alpha" not in o], ids=str
)
def test_three_prompts_one_after_the_other(name, options, drafter, tmp_path) -> None:
    scorer = SCORERS.build(name, with_map(name, options, drafter, tmp_path))
    asked = ask(drafter, TOKENS)
    trail = trail_of(scorer, drafter)
    if trail is None:
        pytest.skip("the scorer reads every prompt in whole")
    keys = PrefixKeys(trail)
    for tokens in (150, 151):
        request = first_tokens(asked.request, tokens)
        want = scorer.score(request)
        got = scorer.score(replace(request, keys=keys))
        np.testing.assert_allclose(got.scores, want.scores, rtol=2e-3, atol=2e-5 * np.abs(want.scores).max())
        assert keys.cache.tokens == tokens
    changed = asked.request.ids.copy()
    changed[100:] = (changed[100:] + 1) % 256
    keys.cache.rewind_to(100)
    request = replace(asked.request, ids=changed)
    want, got = scorer.score(request), scorer.score(replace(request, keys=keys))
    np.testing.assert_allclose(got.scores, want.scores, rtol=2e-3, atol=2e-5 * np.abs(want.scores).max())


def test_only_new_tokens_are_read(drafter: Model) -> None:
    asked, scorer = ask(drafter, TOKENS), SCORERS.build("tail")
    keys, told = PrefixKeys(trail_of(scorer, drafter)), list[int]()
    scorer.score(replace(first_tokens(asked.request, 300), keys=keys))
    scorer.score(replace(asked.request, keys=keys, progress=told.append))
    assert sum(told) == 90 * drafter.config.layers
    told.clear()
    scorer.score(replace(asked.request, keys=keys, progress=told.append))  # queries are not kept
    assert sum(told) == 8 * drafter.config.layers


@pytest.mark.parametrize("name", ["target_attention", "sink_masked", "mid_layer"])
def test_a_recurrent_reader_goes_back_to_a_stop(hybrid: Model, name: str) -> None:
    asked, scorer = ask(hybrid, TOKENS), SCORERS.build(name)
    keys = PrefixKeys(trail_of(scorer, hybrid), (70, 140, 141, 250, 388))
    scorer.score(replace(asked.request, keys=keys))
    first = TOKENS - (8 if name != "mid_layer" else 5)
    assert keys.cache.places == tuple(stop for stop in keys.stops if stop <= first)
    changed = asked.request.ids.copy()
    changed[200:] = (changed[200:] + 1) % 256
    assert keys.cache.rewind_to(200) == 141
    request = replace(asked.request, ids=changed)
    want, got = scorer.score(request), scorer.score(replace(request, keys=keys))
    np.testing.assert_allclose(got.scores, want.scores, rtol=2e-3, atol=2e-5 * np.abs(want.scores).max())
