"""SmolLM2 behind the server, asked by the clients of OpenAI and Anthropic over several turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sp.session import Conversations, Loaded, Pipeline

pytest.importorskip("openai")
tool = pytest.importorskip("serving")  # which needs the server's packages

TURNS = ("What is the capital of France? Answer in one word.", "Which river runs through it?", "And where does it end?")


@pytest.fixture(scope="module")
def talking(loaded_smollm2: Loaded) -> Iterator[tool.Running]:
    pipeline = Pipeline(loaded_smollm2, loaded_smollm2)
    with tool.serving(pipeline, talks=Conversations(pipeline)) as running:
        yield running


def test_three_apis_say_the_same(talking: tool.Running) -> None:
    """Each turn by another API, and by a stream as well; each goes on with the session of those before."""
    anthropic = pytest.importorskip("anthropic")  # takes seconds to import, which most processes of tests need not
    openai, claude = tool.client(talking), anthropic.Anthropic(base_url=talking.url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "any", "max_tokens": 8}
    turns: list[Any] = []
    for number, question in enumerate(TURNS):
        turns.append({"role": "user", "content": question})
        whole = openai.chat.completions.create(messages=turns, **asked)
        said = whole.choices[0].message.content
        parts = openai.chat.completions.create(messages=turns, stream=True, **asked)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == said
        message = claude.messages.create(messages=turns, **asked)
        assert message.content[0].text == said
        assert openai.responses.create(input=turns, model="any", max_output_tokens=8).output_text == said
        tokens = whole.usage.prompt_tokens
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == tokens
        assert (whole.usage.prompt_tokens_details.cached_tokens > 0) == (number > 0)
        assert message.usage.cache_read_input_tokens >= 0.9 * tokens
        if number == 0:
            assert "Paris" in said
        turns.append({"role": "assistant", "content": said})
