"""Thinking over HTTP, by the `openai` and `httpx` packages: asked for, told apart, and dropped from old turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import serving as tool
import web
from thinking_templates import OPENED, SWITCHED

from sp.gguf import ChatTemplate
from sp.prompt import Prompt
from sp.session import Pipeline, RunResult

openai = pytest.importorskip("openai")

ASK: Any = [{"role": "user", "content": "Is it?"}]
SAID = "<think>\nIs it <b>?\nIt is.\n</think>\n\nYes, it is: </think>."
THOUGHT = {"role": "assistant", "content": ""}
SEEN: list[str] = []
"""Prompts, the last one last."""


class Thoughtful(Pipeline):
    """Answers `SAID`, whatever it reads; of a prompt that begins to think, what follows the mark."""

    def run(self, prompt: Prompt, options: Any, *, on_token: Any = None, **given: Any) -> RunResult:
        result = super().run(prompt, options, **given)
        SEEN.append(prompt.text)
        opened = prompt.thinks is not None and prompt.thinks.opened
        tokens = self.target.tokenizer.encode(SAID.removeprefix("<think>") if opened else SAID).ids.tolist()
        taken = []
        for token in tokens if on_token else []:
            taken.append(token)
            if on_token(token):
                break
        return replace(result, answer=replace(result.answer, tokens=tuple(taken)))


def thoughtful(pair: Pipeline, source: str) -> Pipeline:
    return Thoughtful(replace(pair.target, template=ChatTemplate(source)), pair.drafter)


@pytest.fixture(scope="module")
def switched(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(thoughtful(pair, SWITCHED)) as running:
        yield running


def test_a_reply_has_thinking_and_answer_apart(switched: tool.Running) -> None:
    reply = tool.client(switched).chat.completions.create(model="x", messages=ASK)
    message = reply.choices[0].message
    assert message.content == "Yes, it is: </think>."
    assert message.reasoning_content == message.reasoning == "Is it <b>?\nIt is."
    assert 0 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens


def test_a_stream_has_them_in_deltas_of_their_own(switched: tool.Running) -> None:
    chunks = list(tool.client(switched).chat.completions.create(model="x", messages=ASK, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thought = [each.reasoning_content for each in deltas if getattr(each, "reasoning_content", None)]
    said = [each.content for each in deltas if each.content]
    assert "".join(thought) == "Is it <b>?\nIt is."
    assert "".join(said) == "Yes, it is: </think>."
    assert len(thought) > 3
    order = ["reasoning" if getattr(each, "reasoning_content", None) else "content" for each in deltas[1:-1]]
    assert order == sorted(order, reverse=True)


def test_a_prompt_that_begins_to_think(pair: Pipeline) -> None:
    with tool.serving(thoughtful(pair, OPENED)) as running:
        client = tool.client(running)
        message = client.chat.completions.create(model="x", messages=ASK).choices[0].message
        assert (message.reasoning_content, message.content) == ("Is it <b>?\nIt is.", "Yes, it is: </think>.")
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        client.chat.completions.create(model="x", messages=ASK, extra_body=off)
        assert SEEN[-1].endswith("<think>\n\n</think>\n\n")


def test_a_stop_string_ends_the_answer_and_not_the_thinking(switched: tool.Running) -> None:
    reply = tool.client(switched).chat.completions.create(model="x", messages=ASK, stop=["is"])
    assert reply.choices[0].message.content == "Yes, it "
    assert reply.choices[0].message.reasoning_content == "Is it <b>?\nIt is."


@pytest.mark.parametrize(
    ("asked", "closed"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"reasoning_effort": "none"}, True),
    ],
)
def test_a_request_switches_thinking(switched: tool.Running, asked: dict[str, Any], closed: bool) -> None:
    tool.client(switched).chat.completions.create(model="x", messages=ASK, extra_body=asked)
    assert SEEN[-1].endswith("</think>\n\n") == closed


def test_old_thinking_is_dropped_as_the_template_says(switched: tool.Running) -> None:
    said: Any = [
        *ASK,
        {"role": "assistant", "content": "One.", "reasoning_content": "dropped field"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "<think>\ndropped text\n</think>\n\nTwo."},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": None, "reasoning": "kept"},
    ]
    tool.client(switched).chat.completions.create(model="x", messages=said)
    assert "dropped" not in SEEN[-1]
    assert "<|im_start|>assistant\nTwo.<|im_end|>" in SEEN[-1]
    assert "<|im_start|>assistant\n<think>\nkept\n</think>\n\n<|im_end|>" in SEEN[-1]


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort", "reads no reasoning_effort"),
        ({"reasoning_effort": "<|im_end|>"}, "reasoning_effort", "one word"),
        ({"reasoning_effort": 3}, "reasoning_effort", "send a string"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "chat_template_kwargs.enable_thinking", "true or false"),
        ({"chat_template_kwargs": {"depth": 3}}, "chat_template_kwargs.depth", "does not read"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "is set by the server"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "send an object"),
        ({"messages": [THOUGHT | {"reasoning": 3}]}, "messages[0].reasoning", "send a string"),
        ({"messages": [THOUGHT | {"reasoning_content": 3}]}, "messages[0].reasoning_content", "send a string"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(switched: tool.Running, asked: Any, param: str, said: str) -> None:
    told = web.post(f"{switched.url}/v1/chat/completions", json={"messages": ASK, **asked}, timeout=60)
    assert told.status_code == 400
    error = told.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert "\n" not in error["message"]


def test_a_model_without_thinking_refuses_to_be_asked_for_it(server: tool.Running) -> None:
    client = tool.client(server)
    client.chat.completions.create(model="x", messages=ASK, extra_body={"reasoning_effort": None})
    on, off = ({"chat_template_kwargs": {"enable_thinking": value}} for value in (True, False))
    assert client.chat.completions.create(model="x", messages=ASK, extra_body=off).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="knows no thinking"):
        client.chat.completions.create(model="x", messages=ASK, extra_body=on)
    with pytest.raises(openai.BadRequestError, match="reads no reasoning_effort"):
        client.chat.completions.create(model="x", messages=ASK, reasoning_effort="high")
