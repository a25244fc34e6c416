"""Whether what an evaluation is to read fits the target, asked of the first of each kind before any model reads."""

from __future__ import annotations

from collections.abc import Iterable

from sp.chat import Thinking
from sp.errors import PromptError
from sp.evals.base import Example
from sp.evals.run import named, with_thinking
from sp.session import Pipeline
from sp.session.decision import check_context

SLACK = 1024
"""Tokens by which a prompt may be shorter than was asked for."""


def check_lengths(pipeline: Pipeline, lengths: Iterable[int]) -> None:
    """PromptError if prompts of a length are beyond the target's context: before they are made, which takes long.

    Examples
    --------
    >>> check_lengths(Pipeline.open(device="cpu"), [1024, 1 << 30])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sp.errors.PromptError: prompts of 1073741824 tokens are asked for, but target.gguf has a context of ...
    """
    context = pipeline.target.model.config.context
    if (longest := max(lengths, default=0)) > context + SLACK:
        name = pipeline.target.path.name
        raise PromptError(
            f"prompts of {longest} tokens are asked for, but {name} has a context of {context}; ask for shorter ones"
        )


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
