"""What holds for every registered scorer, in every configuration of its case."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scorer_cases import CASES, DOCUMENTED, MATRIX, ask, margin, silently, with_map

import sp.models.run.chunked
import sp.models.run.layer_major
from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models import Model, load_model
from sp.scoring import SCORERS
from sp.scoring.attention.attention import AttentionScorer
from sp.scoring.attention.key_values import KeyValueScorer
from sp.scoring.base import ReadingScorer

TOKENS = 262  # no whole number of pages or chunks
every = pytest.mark.parametrize(("name", "options"), MATRIX, ids=str)
by_name = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture(scope="module")
def drafter(retriever_drafter: Path) -> Model:
    return load_model(retriever_drafter)


@pytest.fixture(scope="module")
def target(retriever_target: Path) -> Model:
    return load_model(retriever_target)


@pytest.fixture
def model(name: str, drafter: Model, target: Model) -> Model:
    """Who reads for a scorer: target attention is tested on the hybrid."""
    return target if SCORERS.build(name).reads_target else drafter


def test_every_case_is_of_a_registered_scorer() -> None:
    assert set(CASES) <= set(SCORERS)


@pytest.fixture(scope="module")
def known() -> dict[str, Floats]:
    """Scores of the prompt of `TOKENS` by case, which two tests ask for."""
    return {}


@every
def test_one_finite_number_a_token_always_the_same(name, options, model, tmp_path, known) -> None:
    asked = ask(model, TOKENS)
    inputs = asked.request.ids, asked.request.question, asked.request.needle
    before = [array.copy() for array in inputs]
    scorer = SCORERS.build(name, with_map(name, options, model, tmp_path))
    found = scorer.score(asked.request)
    assert found.scores.shape == (TOKENS,)
    assert found.scores.dtype == np.float32
    assert type(found.scores) is np.ndarray
    assert np.isfinite(found.scores).all()
    assert found.scores.min() < found.scores.max()
    known[str((name, options))] = found.scores
    again = scorer.score(asked.request)
    np.testing.assert_array_equal(again.scores, found.scores)
    for given, was in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(given, was)
    whole = 2 * TOKENS * model.config.layers  # both readings
    assert sum(asked.told) == (whole if CASES[name].reads else 0)


@every
def test_the_same_whatever_is_read_together(name, options, model, tmp_path, known, monkeypatch) -> None:
    scorer = SCORERS.build(name, with_map(name, options, model, tmp_path))
    asked = ask(model, TOKENS)
    want = known.get(str((name, options)))
    if want is None:
        want = scorer.score(asked.request).scores
    for module, limits in ((sp.models.run.layer_major, "LAYER_MAJOR_CHUNK"), (sp.models.run.chunked, "CHUNK")):
        monkeypatch.setitem(getattr(module, limits), "cpu", 111)
    got = scorer.score(asked.request).scores
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-5 * np.abs(want).max())


@every
def test_the_shortest_prompts(name, options, model, tmp_path) -> None:
    scorer = SCORERS.build(name, with_map(name, options, model, tmp_path))
    asked = ask(model, 200, 4)
    for n in (1, 2, 5):
        one = silently(asked, ids=asked.request.ids[-n:], positions=np.arange(n), question=np.arange(n) >= n - 1,
                       needle=np.arange(n) == 0, progress=None)  # fmt: skip
        found = scorer.score(one).scores
        assert found.shape == (n,)
        assert np.isfinite(found).all()


@by_name
def test_the_needle_comes_first_where_that_is_promised(name, model, tmp_path) -> None:
    finds = CASES[name].finds
    if finds is None:
        pytest.skip("no promise")
    scorer = SCORERS.build(name, with_map(name, finds, model, tmp_path))
    asked = ask(model, 700)
    assert margin(scorer.score(silently(asked, progress=None)).scores, asked.start) > 0


@by_name
def test_heat_maps_of_layers_and_heads(name, model, tmp_path) -> None:
    scorer = SCORERS.build(name, with_map(name, {}, model, tmp_path))
    if not isinstance(scorer, AttentionScorer | KeyValueScorer):
        pytest.skip("no attention")
    found = scorer.score(silently(ask(model, TOKENS), by_head=True, progress=None))
    assert found.by_layer is not None
    layers, chunks = found.by_layer.shape
    assert 1 <= layers <= len(model.config.attention_layers)
    assert chunks == -(-TOKENS // 32)
    if isinstance(scorer, AttentionScorer) or found.by_head is not None:
        assert found.by_head is not None
        assert found.by_head.shape == (layers, model.config.heads, chunks)


@pytest.mark.parametrize(
    ("name", "options", "message"), [(name, *bad) for name, case in CASES.items() for bad in case.bad], ids=str
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SCORERS.build(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bm25", "embedding", "mid_layer", "oracle"])
def test_what_a_scorer_needs_of_the_prompt(name, model) -> None:
    asked = ask(model, 200, 4)
    nothing = np.zeros(200, bool)
    with pytest.raises(ConfigError, match="needs a prompt with a known") as caught:
        SCORERS.build(name).score(silently(asked, question=nothing, needle=nothing))
    assert "\n" not in str(caught.value)


def test_predicted_costs(drafter, tmp_path) -> None:
    def cost(name: str, **options: Any) -> float:
        return SCORERS.build(name, with_map(name, options, drafter, tmp_path)).flops(drafter.config, 100_000)

    assert cost("layer_subset", layers=[0]) == cost("embedding", depth=1) < cost("tail")
    assert cost("tail") == cost("lookahead", layers=[0]) == cost("self_information") > 0
    for name, case in CASES.items():
        assert (cost(name) > 0) == case.reads, name


def test_the_page_names_every_documented_scorer_with_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scorers.md").read_text()
    table = page[page.index("| scorer | what makes") :]

    def said(field: Any) -> str:
        value = f'"{field.default}"' if field.default == "" else field.default
        return f"`{field.name}={value}`"

    shared = {field.name: said(field) for kind in (ReadingScorer, AttentionScorer) for field in fields(kind)}
    for name in DOCUMENTED:
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        for field in fields(type(SCORERS.build(name))):
            assert field.default is not MISSING
            where = table if shared.get(field.name) == said(field) else row
            assert said(field) in where, f"{name}: {said(field)}"


def test_the_map_of_the_embedded_drafter_is_its_own() -> None:
    from sp.scoring.attention.heads import EMBEDDED_MAP, HeadMap
    from sp.session.loaded import embedded

    drafter = load_model(embedded("drafter"))
    found = HeadMap.load(EMBEDDED_MAP).select_heads(drafter, 0.1)
    assert found
    assert sum(row.sum() for row in found.values()) < drafter.config.layers * drafter.config.heads / 2
