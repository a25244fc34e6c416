"""The default scorer: which one it takes for which file, what the report says, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scorer_cases import random_head

from sp.errors import ConfigError
from sp.models import ModelConfig, Retrieval
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.heads import CalibratedScorer
from sp.scoring.base import AutoScorer
from sp.scoring.calibration import record
from sp.scoring.calibration.measure import calibrate, makes_one
from sp.scoring.calibration.record import Calibration
from sp.scoring.trained import late_interaction
from sp.scoring.trained.late_interaction import LateInteractionScorer
from sp.session.loaded import Loaded, embedded, load
from sp.session.options import RunOptions
from sp.session.report import retrieval_lines

SPARSE = {"sparse": "alpha:0.3"}
TOKENS = 150
"""Of texts that heads are measured on; what they find is not what is tested."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def drafter() -> Loaded:
    """The embedded drafter as a run opens it."""
    return load(embedded("drafter"), device="cpu", scorers=[AutoScorer()])


def asked(loaded: Loaded, tokens: int = 400) -> ScoreRequest:
    ids, question = np.random.default_rng(3).integers(100, 1000, tokens), np.zeros(tokens, bool)
    question[-20:-4] = True
    return ScoreRequest(loaded.model, ids, np.arange(tokens), question, np.zeros(tokens, bool))


def with_scorer(loaded: Loaded, scorer: str, sha256: str = "") -> ModelConfig:
    """Its configuration with a calibration that names a scorer."""
    config = loaded.model.config
    assert config.retrieval is not None
    return replace(config, retrieval=replace(config.retrieval, scorer=scorer, sha256=sha256))


@pytest.fixture
def as_if(drafter, monkeypatch):
    """Give the embedded drafter a calibration that names a scorer, for one test."""

    def change(scorer: str, sha256: str = "") -> None:
        monkeypatch.setattr(drafter.model, "config", with_scorer(drafter, scorer, sha256))

    return change


@pytest.fixture
def a_head(tmp_path, monkeypatch, drafter):
    """A head that ships, as it were, for the sha256 of ones."""
    folder, sha256 = tmp_path / "heads", "1" * 64
    folder.mkdir()
    config = drafter.model.config
    random_head(config, query=(1,), key=(0, 2), drafter=sha256).save(folder / "one.safetensors", {})
    monkeypatch.setattr(late_interaction, "SHIPPED", folder)
    late_interaction.shipped.cache_clear()
    yield sha256
    late_interaction.shipped.cache_clear()


def test_it_is_the_default() -> None:
    assert RunOptions().scorer == AutoScorer()


@pytest.mark.parametrize("options", [{}, SPARSE], ids=str)
def test_of_the_embedded_drafter_it_is_tail(drafter, options) -> None:
    request, tail = asked(drafter), SCORERS.build("tail", options)
    scorer = SCORERS.build("auto", options)
    assert scorer.scorer_for(drafter.model.config) == tail
    got, want = scorer.score(request), tail.score(request)
    np.testing.assert_array_equal(got.scores, want.scores)
    assert got.densities == want.densities
    config = drafter.model.config
    for ask in ("reading_depth", "prefix_layers"):
        assert getattr(scorer, ask)(config) == getattr(tail, ask)(config)
    assert scorer.flops(config, 1000) == tail.flops(config, 1000)
    assert retrieval_lines(drafter, scorer, None) == ["drafter: scorer auto is tail for drafter.gguf"]


@pytest.mark.parametrize("options", [{}, SPARSE], ids=str)
def test_of_a_file_with_a_head_it_is_late_interaction(drafter, as_if, a_head, options) -> None:
    as_if("late_interaction", a_head)
    scorer, config = SCORERS.build("auto", options), drafter.model.config
    assert scorer.scorer_for(config) == LateInteractionScorer(**options)
    assert scorer.reading_depth(config) == 3
    found = scorer.score(asked(drafter))
    np.testing.assert_array_equal(found.scores, LateInteractionScorer(**options).score(asked(drafter)).scores)
    assert len(found.densities) == (2 if options else 0)
    assert retrieval_lines(drafter, scorer, None) == [
        "drafter: scorer auto is late_interaction for drafter.gguf",
        "drafter: a trained head of rank 7 on layers 0, 2 of 5; 3 are run",
    ]


@pytest.mark.parametrize("options", [{}, SPARSE], ids=str)
def test_of_an_unknown_file_it_is_calibrated(tmp_path, options) -> None:
    path = write_synthetic(tmp_path / "noise.gguf", "tiny-qwen3", "q8_0", 0)
    loaded = load(path, device="cpu", scorers=[AutoScorer(calibrate="never")])
    assert loaded.model.config.retrieval is None
    scorer = SCORERS.build("auto", options | {"calibrate": "never"})
    assert scorer.scorer_for(loaded.model.config) == CalibratedScorer(**options)
    want = CalibratedScorer(**options).score(asked(loaded, 200))
    np.testing.assert_array_equal(scorer.score(asked(loaded, 200)).scores, want.scores)
    lines = retrieval_lines(loaded, scorer, None)
    assert lines[0] == "drafter: scorer auto is calibrated for noise.gguf"
    assert len(lines) == 2
    assert "by rule, un-rotated" in lines[1]


def test_what_is_left_to_length_is_settled_before_it_is_passed_on(drafter) -> None:
    scorer = AutoScorer(sparse="auto").resolve(1 << 17)
    chosen = scorer.scorer_for(drafter.model.config)
    assert chosen.sparse == "alpha:0.1"


@pytest.mark.parametrize(
    "name", ["nothing", "auto", "bm25", "target_attention", "answer_attention", "oracle", "x\n" * 300], ids=repr
)
def test_a_scorer_that_reads_with_no_drafter_is_refused_in_one_line(drafter, as_if, name) -> None:
    as_if(name)
    config = drafter.model.config
    for ask in (lambda s: s.score(asked(drafter)), lambda s: s.reading_depth(config), lambda s: s.flops(config, 9)):
        with pytest.raises(ConfigError, match=r"names scorer .*, which does not run a drafter") as caught:
            ask(AutoScorer())
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


def test_a_calibration_that_names_such_a_scorer_is_refused_where_the_file_is_opened(drafter) -> None:
    shipped = record.find_calibration(drafter.path)
    assert record.keep_calibration(replace(shipped, scorer="nothing")) is not None
    with pytest.raises(ConfigError, match="names scorer 'nothing'"):
        load(drafter.path, device="cpu", scorers=[AutoScorer()])
    load(drafter.path, device="cpu", scorers=[SCORERS.build("tail")])  # which does not ask


def test_a_calibration_says_its_scorer_or_it_is_calibrated(tmp_path) -> None:
    path = tmp_path / "c.json"
    made = Calibration("ab" * 32, "tiny.gguf", {3: (0, 2)}, "none", 0.01, 0.9, 64, {}, scorer="tail")
    made.save(path)
    assert Calibration.load(path) == made
    held = json.loads(path.read_text())
    del held["scorer"]
    path.write_text(json.dumps(held))
    found = Calibration.load(path)
    assert found.scorer == "calibrated"
    config = find_shape("qwen3-0.6b").config
    retrieval = found.retrieval(config)
    assert (retrieval.scorer, retrieval.sha256) == ("calibrated", "ab" * 32)
    path.write_text(json.dumps(held | {"scorer": 3}))
    with pytest.raises(ConfigError, match="scorer must be"):
        Calibration.load(path)


def test_a_new_calibration_leaves_the_scorer_of_a_file_that_ships_as_it_is(tmp_path) -> None:
    """Else to measure heads would turn `auto` away from what finds more."""
    whole = load(embedded("drafter"), extrapolate=True, device="cpu")
    made = calibrate(whole.path, whole.model, whole.tokenizer, whole.template, tokens=TOKENS)
    assert made.scorer == "tail"
    assert record.keep_calibration(made) is not None
    again = load(whole.path, device="cpu", scorers=[AutoScorer()])
    assert again.model.config.retrieval == made.retrieval(whole.model.config)
    assert AutoScorer().scorer_for(again.model.config) == SCORERS.build("tail")
    path = write_synthetic(tmp_path / "noise.gguf", "tiny-qwen3", "q8_0", 0)
    other = load(path, extrapolate=True, device="cpu")
    assert calibrate(path, other.model, other.tokenizer, other.template, tokens=TOKENS).scorer == "calibrated"


def test_who_makes_a_calibration() -> None:
    """A head belongs to a file already: to measure which layers retrieve would bring none."""
    assert makes_one([AutoScorer()])
    assert not makes_one([AutoScorer(calibrate="never"), LateInteractionScorer(), SCORERS.build("tail")])


def test_retrieval_without_a_scorer_is_calibrated(drafter) -> None:
    config = replace(drafter.model.config, retrieval=Retrieval(((1, (0,)),), "none"))
    assert isinstance(AutoScorer().scorer_for(config), CalibratedScorer)
