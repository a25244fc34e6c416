"""Whether what an evaluation is to read fits the target, asked of the first of each kind before any model reads."""

from __future__ import annotations

from sp.chat import Thinking
from sp.evals.base import Example
from sp.evals.run import named, with_thinking
from sp.pipeline import Pipeline
from sp.pipeline.window import check_context


def check_example(pipeline: Pipeline, given: Example, thinking: Thinking) -> None:
    """PromptError if an example and its answer do not fit the target's context, as `evaluate` has it.

    Examples
    --------
    >>> from sp.evals.base import WITHOUT
    >>> example = Example("e1", "needle", "The sky is blue.", "What is blue?", "", ("sky",), max_new_tokens=200_000)
    >>> check_example(Pipeline.open(device="cpu"), example, WITHOUT)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sp.errors.PromptError: example e1: the prompt has 20 tokens and the answer up to 200000, but target.gguf has ...
    """
    target, example = pipeline.target, with_thinking(given, thinking)
    with named(example):
        prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
        check_context(target, len(prompt), example.max_new_tokens)
