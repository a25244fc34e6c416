"""A chat template that closes thinking: the drafter is asked by the question, and replies are read by the marks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from embedded_pair import known_task

import sp
from sp.chat import Thinking
from sp.evals import TASKS, evaluate
from sp.gguf import ChatTemplate
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions

SWITCH = (
    "{% if add_generation_prompt %}{{ '<think>\n' if enable_thinking is not defined or enable_thinking else "
    "'<think>\n\n</think>\n\n' }}{% endif %}"
)
OPTIONS = RunOptions(keep_ratio=0.22)


@pytest.fixture(scope="module")
def thinking() -> Pipeline:
    """The embedded pair, with a template that opens or closes thinking behind the assistant's name."""
    pair = sp.load(device="cpu")
    assert pair.target.template is not None
    template = ChatTemplate(pair.target.template.source + SWITCH)
    return Pipeline(replace(pair.target, template=template), pair.drafter)


def recall(pair: Pipeline, options: RunOptions, known: bool = True, prompts: int = 4) -> float:
    """Mean needle recall of some prompts; unless `known`, as if nothing told where the question ends."""
    task, found = known_task(), []
    for index in range(prompts):
        example = task.example(index, 1024, lambda text: len(pair.target.tokenizer.encode(text).ids))
        prompt = pair.tokenise(example.prompt(pair.target.template))
        if not known:
            spans = tuple(span for span in prompt.prompt.spans if span.kind not in ("question", "plain"))
            prompt = replace(prompt, prompt=replace(prompt.prompt, spans=spans))
        _, selection = pair.select(pair.score(prompt, options), prompt, options)
        found.append(float(selection.selected[prompt.mask("needle")].mean()))
    return float(np.mean(found))


@pytest.mark.slow
def test_the_question_asks_and_not_the_marks_behind_it(thinking: Pipeline) -> None:
    without, by_marks = recall(thinking, OPTIONS), recall(thinking, OPTIONS, known=False)
    print(f"needle recall {without:.2f} by the question, {by_marks:.2f} by the last tokens of the prompt")
    assert without > 0.9
    assert by_marks < 0.8
    lookahead = replace(OPTIONS, scorer=SCORERS.build("lookahead"))
    assert recall(thinking, lookahead, prompts=1) == recall(thinking, lookahead, known=False, prompts=1)


def test_what_is_thought_is_no_answer(thinking: Pipeline) -> None:
    task = TASKS.build("needle")
    example = task.example(0, 256, lambda text: len(thinking.target.tokenizer.encode(text).ids))
    rows = {}
    for mode, pair in (("off", sp.load(device="cpu")), ("on", thinking)):  # behind closed marks it may write others
        (rows[mode],) = evaluate(pair, [example], [], thinking=Thinking(mode))  # type: ignore[arg-type]
    assert rows["on"]["thinking"] == "on"
    assert "thinking" not in rows["off"]
    assert rows["off"]["answer"]
    assert rows["on"]["answer"] == ""  # the embedded target ends its thinking by ending the reply
    prompt = example.prompt(thinking.target.template, Thinking("on"))
    answer = thinking.run(prompt, replace(OPTIONS, max_new_tokens=8, compress="off"), full=False).answer
    assert answer.reasoning
    assert answer.text == ""
