"""What clients send that is more than the server knows, or than there is room for: answered, and told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import serving as tool
import web

from sp.session import Conversations, Pipeline

WHO = {"messages": [{"role": "user", "content": "Who is there?"}]}


@pytest.fixture(scope="module", params=["alone", "session"])
def narrow(request: pytest.FixtureRequest) -> Iterator[tool.Running]:
    """A target with a short window, which no short answer fills."""
    pair = tool.load()
    pair.target.model.config = replace(pair.target.model.config, context=18)
    with tool.serving(pair, talks=Conversations(pair) if request.param == "session" else None) as running:
        yield running


def ask(server: tool.Running, path: str = "chat/completions", **body: Any) -> dict[str, Any]:
    reply = web.post(f"{server.url}/v1/{path}", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_unknown_fields_are_told(server: tool.Running) -> None:
    raw = json.dumps(WHO | {"depth": 3, "\ud800x": 1}).encode()
    headers = {"Content-Type": "application/json"}
    told = web.post(f"{server.url}/v1/chat/completions", content=raw, headers=headers).json()
    assert told["usage"]["sp"]["ignored"] == ["depth: unknown field", "?x: unknown field"]
    assert "ignored" not in ask(server, **WHO, depth=None)["usage"]["sp"]


@pytest.mark.parametrize("most", [-1, 60])
def test_an_answer_ends_where_the_window_does(narrow: tool.Running, most: int) -> None:
    free = {"temperature": 2, "seed": 4, "stop": None}
    told = ask(narrow, **WHO, max_tokens=most, **free)
    left = 18 - told["usage"]["prompt_tokens"]
    assert 0 < told["usage"]["completion_tokens"] <= left
    ends = {told["choices"][0]["finish_reason"]: told["usage"]["completion_tokens"]}
    assert ends.get("length", left) == left


def test_what_fills_the_window_itself_is_too_long(narrow: tool.Running) -> None:
    reply = web.post(f"{narrow.url}/v1/completions", json={"prompt": "a b c d " * 9, "sp": {"off": True}})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_prompts_as_lists(server: tool.Running, pair: Pipeline) -> None:
    text = "The sky is"
    ids = pair.target.tokenizer.encode(text, framed=True).ids.tolist()
    said = [ask(server, "completions", prompt=each, max_tokens=4)["choices"][0]["text"]
            for each in (text, [text], ids, [ids])]  # fmt: skip
    assert len(set(said)) == 1
    reply = web.post(f"{server.url}/v1/completions", json={"prompt": [1 << 30]})
    assert reply.status_code == 400
    assert "outside the vocabulary" in reply.json()["error"]["message"]
