"""8-bit products in whole runs: where they are taken, what the trace says, and what they leave alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sp.ops.matmul.project  # noqa: F401
from sp.errors import ConfigError, PromptError
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.planning.memory import least_bytes, product_bytes
from sp.prompt import Prompt
from sp.quant import Math
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions
from sp.session.device.memory_manager import MemoryManager
from sp.session.report import rounded_tokens
from sp.studies.pages.run_report import run_trace, summary
from sp.studies.sample import sample

linear = sys.modules["sp.ops.matmul.project"]


ATTENTION = "; attention of runs from 2,049 tokens on"


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    return Pipeline.open(device="cpu", precision="int8", drafter_precision="int8")


@pytest.fixture(scope="module")
def plain() -> Pipeline:
    return Pipeline.open(device="cpu")


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every product that the twin makes in bytes."""
    seen, product = list[int](), linear.byte_product

    def counted(x: Any, w: Any) -> Any:
        seen.append(len(x.codes))
        return product(x, w)

    monkeypatch.setattr(linear, "byte_product", counted)
    return seen


def prompt_of(pair: Pipeline, words: int) -> Prompt:
    document, example = sample()
    text = " ".join(document.split(" ")[:words])
    return Prompt.from_document(text, example.question, pair.target.template)


def test_the_trace_tells_of_tokens_that_were_multiplied_in_bytes(pair: Pipeline, rounded: list[int]) -> None:
    options = RunOptions(compress="always", keep_ratio=0.2, max_new_tokens=1)
    result = pair.run(prompt_of(pair, 900), options, full=False)
    n, kept = len(result.prompt), result.kept_tokens
    assert 1024 < n < 2048
    assert kept < ROUNDED_TOKENS
    assert set(rounded) == {n}, "the drafter reads all of them together, and the target too few"
    lines = [
        f"target: int8 for 56 of 70 matrices of layers, 0 of {kept:,} tokens{ATTENTION}",
        f"drafter: int8 for 21 of 35 matrices of layers, {n:,} of {n:,} tokens{ATTENTION}",
    ]
    assert result.answer.trace.facts["math"] == lines
    assert summary(result, {})["math"] == lines
    facts = run_trace(result, pair, options, {}).facts
    assert facts["math"] == lines
    assert facts["target"]["math"] == {
        "asked": "int8", "math": "int8", "weights": 56, "matrices": 70, "reason": "", "attention": "int8", "kept": 0,
    }  # fmt: skip


def test_a_prompt_that_is_read_whole_goes_through_the_target_in_chunks(pair: Pipeline, rounded: list[int]) -> None:
    result = pair.run(prompt_of(pair, 700), RunOptions(compress="off", max_new_tokens=1), full=False)
    n = len(result.prompt)
    assert 1024 < n < 1024 + ROUNDED_TOKENS
    assert set(rounded) == {1024}
    assert rounded_tokens(n, 1024) == 1024
    assert result.answer.trace.facts["math"] == [
        f"target: int8 for 56 of 70 matrices of layers, 1,024 of {n:,} tokens{ATTENTION}",
        f"drafter: int8 for 21 of 35 matrices of layers{ATTENTION}",
    ]


def test_a_short_prompt_is_the_one_of_bf16(pair: Pipeline, plain: Pipeline, rounded: list[int]) -> None:
    options = RunOptions(keep_ratio=0.3, max_new_tokens=16)
    answers = [one.run(prompt_of(one, 200), options, full=False).answer for one in (pair, plain)]
    assert rounded == []
    assert answers[0].tokens == answers[1].tokens
    assert "math" not in answers[1].trace.facts


def test_gaps_leave_the_count_out(pair: Pipeline) -> None:
    options = RunOptions(compress="always", keep_ratio=0.3, state_gaps="reset", max_new_tokens=1)
    found = pair.run(prompt_of(pair, 300), options, full=False).answer.trace.facts["math"]
    assert found[0] == f"target: int8 for 56 of 70 matrices of layers{ATTENTION}"


def test_a_turn_tells_of_what_is_new(pair: Pipeline) -> None:
    talk = Conversation(pair, RunOptions(keep_ratio=0.3, max_new_tokens=1), ConversationOptions())
    document, example = sample()
    messages = [{"role": "user", "content": f"{document[:1500]}\n\n{example.question}"}]
    facts = talk.ask(messages).answer.trace.facts["math"]
    assert [line.partition(":")[0] for line in facts] == ["target", "drafter"]
    assert " of " in facts[1]


def test_target_and_drafter_are_asked_apart() -> None:
    pair = Pipeline.open(device="cpu", precision="auto", drafter_precision="fp8")
    assert pair.drafter is not None
    made_in = pair.target.model.arithmetic, pair.drafter.model.arithmetic
    assert [(str(each.asked), each.precision) for each in made_in] == [("auto", Math.BF16), ("fp8", Math.FP8)]
    with pytest.raises(ConfigError, match="precision is 'int4'; did you mean 'int8'"):
        Pipeline.open(device="cpu", drafter_precision="int4")


def test_a_budget_counts_rounded_operands(pair: Pipeline, plain: Pipeline) -> None:
    """Refused by what bytes take besides, and read by the same pair in BF16."""
    prompt, options = prompt_of(pair, 900), RunOptions(compress="off", max_new_tokens=1)
    model = pair.target.model
    n = len(pair.tokenise(prompt))
    least = least_bytes(model.config, model.nbytes, n + 1, "f16")
    budget = least + product_bytes(model.config, n + 1, Math.INT8) - 1
    for one in (pair, plain):
        tight = replace(one, memory_manager=MemoryManager())
        tight.memory_manager.budget = budget
        if one is plain:
            tight.check(prompt, options, full=False)
            continue
        with pytest.raises(PromptError, match="the budget is"):
            tight.check(prompt, options, full=False)


def test_scores_hardly_change(pair: Pipeline, plain: Pipeline) -> None:
    options = RunOptions()
    prompt = prompt_of(pair, 450)
    assert len(pair.tokenise(prompt)) > ROUNDED_TOKENS
    scores = []
    for one in (pair, plain):
        tokenised = one.tokenise(prompt)
        scores.append(one.select(one.score(tokenised, options), tokenised, RunOptions(keep_ratio=0.3))[0])
    assert np.corrcoef(*scores)[0, 1] > 0.99
    assert not np.array_equal(*scores)
