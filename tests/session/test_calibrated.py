"""The scorer `calibrated` through the pipeline: what is loaded, looked up, made once, and refused."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.scoring import SCORERS
from sp.scoring.attention.heads import CalibratedScorer, rule_of_thumb
from sp.scoring.calibration import measure, record
from sp.scoring.calibration.record import find_calibration
from sp.session import Conversation, Pipeline, RunOptions, embedded, load, synthetic

TEXT = "The lamp is green. " * 25 + "The code of Ada is 4417. " + "The lamp is green. " * 25 + "\n\nWhat is Ada's code?"
OPTIONS = RunOptions(keep_ratio=0.2, scorer=CalibratedScorer(), compress="always", max_new_tokens=4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    record._sha256.cache_clear()


@pytest.fixture
def unknown(tmp_path):
    """A drafter whose file no calibration is known of."""
    path = tmp_path / "drafter.gguf"
    shutil.copy(embedded("drafter"), path)
    with path.open("ab") as file:
        file.write(b"\0" * 32)
    return path


@pytest.fixture(scope="module")
def whole():
    return Pipeline.open(device="cpu")


def test_only_the_layers_that_are_read_are_loaded_and_the_answer_is_the_same(whole) -> None:
    cut = Pipeline.open(device="cpu", scorers=[OPTIONS.scorer])
    depth = find_calibration(embedded("drafter")).depth
    assert cut.drafter.model.depth == depth
    assert cut.drafter.model.weights.output is None
    assert cut.drafter.model.nbytes <= whole.drafter.model.nbytes
    assert cut.drafter.describe()["layers_loaded"] == depth
    one, other = (pair.run(TEXT, OPTIONS, full=False) for pair in (cut, whole))
    np.testing.assert_array_equal(one.importance.scores, other.importance.scores)
    assert one.answer.tokens == other.answer.tokens


def test_what_needs_more_layers_is_refused_in_one_line(unknown) -> None:
    cut = Pipeline.open(drafter=unknown, device="cpu", scorers=[CalibratedScorer(calibrate="never")])
    for name in ("tail", "lookahead"):
        with pytest.raises(ConfigError, match=f"scorer {name}: only the first . layers of the") as caught:
            cut.check(TEXT, replace(OPTIONS, scorer=SCORERS.build(name)))
        assert "\n" not in str(caught.value)
    cut.check(TEXT, replace(OPTIONS, scorer=SCORERS.build("bm25")))


def test_as_many_layers_are_loaded_as_the_deepest_scorer_needs(whole) -> None:
    every = whole.drafter.model.config.layers
    pair = Pipeline.open(device="cpu", scorers=[OPTIONS.scorer, SCORERS.build("tail")])
    assert pair.drafter.model.depth == every
    assert pair.drafter.model.weights.output is None
    pair = Pipeline.open(device="cpu", scorers=[OPTIONS.scorer, SCORERS.build("lookahead")])
    assert pair.drafter.model.weights.output is not None


def test_a_file_without_a_calibration_gets_one_at_first_use(unknown) -> None:
    told = []

    @contextmanager
    def reporter(what, total):
        told.append((what, total))
        yield lambda done: None

    load(unknown, device="cpu", extrapolate=True, scorers=[OPTIONS.scorer], reporter=reporter)
    assert told == [("calibrating drafter.gguf", 32)]
    found = load(unknown, device="cpu", extrapolate=True, scorers=[OPTIONS.scorer], reporter=reporter)
    assert len(told) == 1
    assert find_calibration(unknown).depth == found.model.depth


def test_python_that_names_no_scorers_gets_the_same(unknown, monkeypatch) -> None:
    pair = Pipeline(load(embedded("target"), device="cpu"), load(unknown, device="cpu", extrapolate=True))
    made = replace(find_calibration(embedded("drafter")), sha256=record.file_sha256(unknown))
    monkeypatch.setattr(measure, "measured", lambda *_: made)
    pair.run(TEXT, OPTIONS, full=False)
    assert pair.drafter.model.config.retrieval == made.retrieval(pair.drafter.model.config)


def test_never_means_the_rule(unknown) -> None:
    scorer = CalibratedScorer(calibrate="never")
    drafter = load(unknown, device="cpu", extrapolate=True, scorers=[scorer])
    assert drafter.model.config.retrieval is None
    assert drafter.model.depth == rule_of_thumb(drafter.model.config).depth
    assert not record.folder().joinpath(f"{record.file_sha256(unknown)}.json").exists()


def test_a_calibration_that_cannot_be_kept_is_one_line(unknown, tmp_path, monkeypatch) -> None:
    made = find_calibration(embedded("drafter"))
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "blocked"))
    monkeypatch.setattr(measure, "measured", lambda *_: made)
    with pytest.raises(ConfigError, match="cannot write the calibration of drafter"):
        load(unknown, device="cpu", extrapolate=True, scorers=[OPTIONS.scorer])


def test_random_weights_are_read_by_the_rule() -> None:
    made = synthetic("tiny-qwen3", device="cpu", scorers=[OPTIONS.scorer])
    assert made.model.config.retrieval is None
    assert made.model.depth == rule_of_thumb(made.model.config).depth


def test_nothing_is_looked_up_where_nothing_is_compressed(whole, monkeypatch) -> None:
    monkeypatch.setattr("sp.session.pipeline.known_retrieval", lambda *_: pytest.fail("looked up"))
    pair = Pipeline(whole.target, load(embedded("drafter"), device="cpu"))
    pair.ready(replace(OPTIONS, compress="off"))
    pair.ready(replace(OPTIONS, scorer=SCORERS.build("tail")))


def test_a_conversation_keeps_the_keys_of_those_layers(whole) -> None:
    talk = Conversation(Pipeline.open(device="cpu", scorers=[OPTIONS.scorer]), OPTIONS)
    messages = [{"role": "user", "content": TEXT}]
    first = talk.ask(messages)
    messages += [{"role": "assistant", "content": first.answer.text}, {"role": "user", "content": "And her lamp?"}]
    again = talk.ask(messages)
    fresh = Conversation(whole, OPTIONS).ask(messages)
    assert again.answer.tokens
    assert fresh.answer.tokens


def test_several_gpus_hold_the_same_layers() -> None:
    from sp.models import ContextParallel
    from sp.parallel.host import HostGroup

    pair = Pipeline.open(device="cpu")
    drafter, copy = (load(embedded("drafter"), device="cpu", extrapolate=True) for _ in range(2))
    gpus = ContextParallel(HostGroup(2), [drafter.model, copy.model])
    pair = Pipeline(pair.target, drafter, gpus=gpus)
    found = pair.run(TEXT, OPTIONS, full=False)
    assert copy.model.config == drafter.model.config
    assert copy.model.config.retrieval is not None
    assert found.importance is not None
