"""The steps of a run by themselves give what the run gives; one vocabulary is tokenised once."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import text_task

from sp.errors import ConfigError
from sp.prompt import Prompt
from sp.scoring import Importance, ScoreRequest
from sp.scoring.controls import RecencyScorer
from sp.selection import SELECTORS
from sp.serve.messages import PromptTokens
from sp.session import Pipeline, RunOptions, load, synthetic
from sp.trace import Trace

OPTIONS = RunOptions(keep_ratio=0.2, compress="always", max_new_tokens=6)


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def prompt(pair: Pipeline) -> Prompt:
    task = text_task(1500, needles=6, seed=9)
    return Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)


def test_steps_compose_to_a_run(pair: Pipeline, prompt: Prompt) -> None:
    whole = pair.run(prompt, OPTIONS)
    tokenised = pair.tokenise(prompt)
    scored = pair.score(tokenised, OPTIONS)
    assert [stage.name for stage in scored.trace.stages] == ["tokenise for drafter", "score"]
    trace = Trace(stages=list(scored.trace.stages))
    scores, selection = pair.select(scored, tokenised, OPTIONS, trace)
    answer = pair.read(tokenised, selection.selected, OPTIONS, trace)
    assert answer.tokens == whole.answer.tokens
    assert whole.selection is not None
    np.testing.assert_array_equal(scores, whole.scores)
    np.testing.assert_array_equal(selection.selected, whole.selection.selected)
    assert answer.ttft_s == pytest.approx(sum(s.seconds for s in trace.stages if s.name != "decode"))
    # One scoring serves any selector and keep ratio.
    other = replace(OPTIONS, selector=SELECTORS.build("top_tokens", {"neighbours": 8}), keep_ratio=0.4)
    assert pair.select(scored, tokenised, other)[1].selected.sum() > selection.selected.sum()


def test_a_scorer_is_few_calls_below_the_run(pair: Pipeline, prompt: Prompt) -> None:
    seen: list[list[str]] = []

    class Watching(RecencyScorer):
        def score(self, request: ScoreRequest) -> Importance:
            seen.append([frame.function for frame in inspect.stack()[1:6]])
            return super().score(request)

    options = replace(OPTIONS, scorer=Watching())
    pair.run(prompt, options, full=False)
    pair.score(pair.tokenise(prompt), options)
    assert seen[0][:4] == ["score_tokens", "score", "answer", "run"]
    assert seen[1][:4] == ["score_tokens", "score", "score", "test_a_scorer_is_few_calls_below_the_run"]


def test_a_scorer_that_runs_no_model_is_charged_for_none(pair: Pipeline, prompt: Prompt) -> None:
    """Their vocabularies differ, so that reading for the drafter would be a stage of its own."""
    free = pair.run(prompt, replace(OPTIONS, scorer="recency"), full=False)
    assert [stage.name for stage in free.answer.trace.stages] == [
        "tokenise", "score", "select", "compress", "target prefill", "decode",
    ]  # fmt: skip
    assert free.drafted is None
    assert free.importance is not None
    assert len(free.importance.scores) == len(free.prompt), "its scores are of the target's tokens"
    assert PromptTokens.of(free).drafted == 0
    read = pair.run(prompt, OPTIONS, full=False)
    assert read.drafted is not None
    assert PromptTokens.of(read).drafted == len(read.drafted) != len(read.prompt)


def test_one_vocabulary_is_tokenised_once(pair: Pipeline, prompt: Prompt) -> None:
    twin = Pipeline(pair.drafter, pair.drafter)  # type: ignore[arg-type]
    tokenised = twin.tokenise(prompt)
    assert twin.score(tokenised, OPTIONS).drafted is tokenised
    other = pair.score(pair.tokenise(prompt), OPTIONS).drafted
    assert len(other) != len(pair.tokenise(prompt))


def test_random_pairs_answer_on_the_cpu_too() -> None:
    small = Pipeline(
        synthetic("tiny-qwen35", "q8_0", device="cpu"),
        synthetic("tiny-qwen3", "bf16", extrapolate=True, device="cpu"),
    )
    asked = Prompt.from_document("the quick brown fox " * 80, "what did it do", small.target.template)
    result = small.run(asked, replace(OPTIONS, keep_ratio=0.5), full=False)
    assert result.selection is not None
    assert set(result.answer.trace.facts) == {"retrieval"}  # nothing of a device
    whole = small.run(asked, replace(OPTIONS, compress="off"), full=False)
    assert not whole.answer.trace.facts  # nor of layers that nobody ran
    with pytest.raises(ConfigError, match="for the CPU write a file first"):
        synthetic("qwen3.6-27b", device="cpu")
