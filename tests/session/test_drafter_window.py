"""A prompt beyond the drafter's window is read with the YaRN that it needs, as if that had been asked for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import TextTask, text_task

from sp.errors import ConfigError, SpWarning
from sp.evals import Example, evaluate
from sp.models import ContextParallel, RopeScaling, SessionCache
from sp.models.synthetic.retriever import write_retriever
from sp.parallel.host import HostGroup
from sp.prompt import Prompt
from sp.scoring import SCORERS, PrefixKeys
from sp.session import Loaded, Pipeline, RunOptions, embedded, load, synthetic
from sp.session.request import score_request
from sp.studies.pages.run_report import run_trace

WINDOW = 512
OPTIONS = RunOptions(keep_ratio=0.3, scorer="tail", compress="always", max_new_tokens=2)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that was made for 512 positions."""
    return write_retriever(tmp_path_factory.mktemp("short") / "short.gguf", "retriever-qwen3", seed=11, context=WINDOW)


@pytest.fixture(scope="module")
def target(retriever_target: Path) -> Loaded:
    return load(retriever_target, device="cpu")


@pytest.fixture(scope="module")
def pair(short: Path, target: Loaded) -> Pipeline:
    return Pipeline(target, load(short, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def task() -> TextTask:
    return text_task(1500, needles=4, seed=4)


def prompt_of(task: TextTask, pair: Pipeline) -> Prompt:
    return Prompt.from_document(task.document, task.question, pair.target.template)


def asked(pair: Pipeline, path: Path, scaling: RopeScaling) -> Pipeline:
    return replace(pair, drafter=load(path, extrapolate=True, device="cpu", rope=scaling))


@pytest.mark.parametrize(
    ("scorer", "options"),
    [
        ("tail", {}),
        ("tail", {"rotary": "none", "layers": (1,)}),
        ("lookahead", {"queries": 3}),
        ("self_information", {}),
    ],
    ids=str,
)
def test_it_is_what_would_have_been_asked_for(
    pair: Pipeline, short: Path, task: TextTask, scorer: str, options: dict[str, object]
) -> None:
    run = replace(OPTIONS, scorer=SCORERS.build(scorer, options))
    tokenised = pair.tokenise(prompt_of(task, pair))
    with warnings.catch_warnings(action="error"):
        found = pair.score(tokenised, run)
        want = asked(pair, short, RopeScaling("yarn", 4.0)).score(tokenised, run)
    assert 2 * WINDOW < len(found.drafted) <= 4 * WINDOW
    np.testing.assert_array_equal(found.importance.scores, want.importance.scores)
    assert found.trace.facts["rope_needed"] == "yarn:4"
    assert "rope_needed" not in want.trace.facts
    with pytest.warns(SpWarning, match="extrapolated"):
        plain = asked(pair, short, RopeScaling("none")).score(tokenised, run)
    assert np.abs(plain.importance.scores - found.importance.scores).max() > 0


def test_nothing_changes_within_the_window(pair: Pipeline, short: Path) -> None:
    tokenised = pair.tokenise(Prompt.from_text(text_task(300, needles=2, seed=5).document))
    with warnings.catch_warnings(action="error"):
        found = pair.score(tokenised, OPTIONS)
        want = asked(pair, short, RopeScaling("none")).score(tokenised, OPTIONS)
    assert len(found.drafted) <= WINDOW
    np.testing.assert_array_equal(found.importance.scores, want.importance.scores)
    assert "rope_needed" not in found.trace.facts


def test_the_same_weights_read_a_short_prompt_after_a_long_one(pair: Pipeline, task: TextTask) -> None:
    short = pair.tokenise(Prompt.from_text(text_task(300, needles=2, seed=5).document))
    before = pair.score(short, OPTIONS).importance.scores
    pair.score(pair.tokenise(prompt_of(task, pair)), OPTIONS)
    np.testing.assert_array_equal(pair.score(short, OPTIONS).importance.scores, before)


def test_several_gpus_scale_alike(pair: Pipeline, task: TextTask) -> None:
    drafter = pair.drafter
    assert drafter is not None
    copies = [drafter.model, replace(drafter).model]
    tokenised = pair.tokenise(prompt_of(task, pair))
    want = pair.score(tokenised, OPTIONS)
    group = HostGroup(2)
    together = replace(pair, gpus=ContextParallel(group, copies))
    for _ in range(2):
        found = together.score(tokenised, OPTIONS)
        np.testing.assert_allclose(found.importance.scores, want.importance.scores, rtol=1e-4, atol=1e-7)
    assert found.trace.facts["cards"] == ["drafter: read by 2 GPUs together"]
    assert len(group.completed) == 1, "what was done once is known, though models with another RoPE are made anew"
    longer = Prompt.from_document(2 * task.document, task.question, pair.target.template)
    assert together.score(pair.tokenise(longer), OPTIONS).trace.facts["rope_needed"] == "yarn:8"
    assert len(group.completed) == 2


def test_keys_of_another_factor_are_refused(pair: Pipeline, task: TextTask) -> None:
    assert pair.drafter is not None
    drafted = prompt_of(task, pair).tokenise(pair.drafter.tokenizer)
    request = score_request(pair.drafter, drafted)
    keys = PrefixKeys(SessionCache(pair.drafter.model.config))
    with pytest.raises(ConfigError, match="have another RoPE"):
        replace(request, keys=keys)
    assert replace(request, keys=PrefixKeys(SessionCache(request.model.config))).keys is not None


def test_a_recurrent_drafter_is_left_as_it_is_and_warns(target: Loaded, task: TextTask) -> None:
    drafter = replace(synthetic("tiny-qwen35", device="cpu", extrapolate=True), trained=WINDOW)
    pair = Pipeline(target, drafter)
    with pytest.warns(SpWarning, match="reads beyond its window of 512 tokens, extrapolated$"):
        result = pair.run(prompt_of(task, pair), OPTIONS, full=False)
    (line,) = result.answer.trace.facts["positions"]
    assert " x as far, extrapolated, for it has recurrent layers; --drafter-rope yarn:" in line


def test_traces_and_rows_have_the_factor(pair: Pipeline, task: TextTask) -> None:
    result = pair.run(prompt_of(task, pair), OPTIONS, full=False)
    facts = run_trace(result, pair, OPTIONS, {}).facts["drafter"]["rope"]
    wanted = {"scaling": "yarn", "factor": 4.0, "original_context": 512, "positions": 2048, "needed": "yarn:4"}
    assert wanted.items() <= facts.items()
    assert facts["asked"] is None
    example = Example("one", "task", task.document, task.question, "", ("x",), max_new_tokens=1)
    rows = list(evaluate(pair, [example], [OPTIONS, replace(OPTIONS, keep_ratio=0.5)]))
    assert [row.get("rope_needed") for row in rows] == [None, "yarn:4", "yarn:4"]


def test_the_window_of_the_embedded_drafter() -> None:
    drafter = load(embedded("drafter"), extrapolate=True, device="cpu")
    assert drafter.for_prompt(drafter.trained or 0) is drafter
    longer = drafter.for_prompt(1 << 20)
    assert (str(longer.needed), longer.trained) == ("yarn:8", 8 * 163_840)
    assert longer.for_prompt(100).model is longer.model
    target = load(embedded("target"), device="cpu")
    assert target.for_prompt(1 << 20) is target, "a target reads no further than its window"
