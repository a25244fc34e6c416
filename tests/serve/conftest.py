"""One server for all tests of this folder that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import serving as tool

from sp.serve.messages import chat_prompt
from sp.session import Conversations, Pipeline, embedded, load


@pytest.fixture(scope="session")
def pair() -> Pipeline:
    """The embedded drafter as its own target, by the target's name: it answers as well and reads four times faster."""
    target, drafter = (load(embedded("drafter"), extrapolate=far, device="cpu") for far in (False, True))
    return Pipeline(replace(target, path=embedded("target")), drafter)


@pytest.fixture(scope="session")
def server(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(pair) as running:
        yield running


@pytest.fixture(scope="module")
def talking(pair: Pipeline) -> Iterator[tool.Running]:
    """With sessions, as it is started by default."""
    with tool.serving(pair, talks=Conversations(pair), answer=64) as running:
        yield running


@pytest.fixture(scope="session")
def expected(pair: Pipeline) -> dict[str, str]:
    """What the pipeline answers to `tool.TASKS` by itself, compressed."""
    answers = {}
    for key, value in tool.TASKS:
        message = {"role": "user", "parts": [tool.document(key, value), tool.question(key)]}
        prompt = chat_prompt((message,), (), pair.target.template, pair.target.tokenizer)
        result = pair.run(prompt, replace(tool.OPTIONS, compress="always"), full=False)
        answers[key] = pair.target.tokenizer.decode(result.answer.tokens)
    return answers
