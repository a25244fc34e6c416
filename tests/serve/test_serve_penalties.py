"""Bias and penalties of requests: answers are those of the definitions, over the model's own logits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import serving as tool
import web
from sampling_reference import penalised, shares

from sp.decode import DDTree
from sp.models import prefill
from sp.serve.fields import RequestError
from sp.serve.options import Defaults
from sp.serve.protocol import parse_request
from sp.session import Conversations, Pipeline

PROMPT = "The grass is green and the grass"


def post(server: tool.Running, path: str = "completions", **body: Any) -> dict[str, Any]:
    given = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    reply = web.post(f"{server.url}/v1/{path}", json=given | body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def answer(pair: Pipeline, given: dict[str, Any], tokens: int) -> list[int]:
    """Greedily, by definition: every step reads prompt and answer anew."""
    tokenizer, model = pair.target.tokenizer, pair.target.model
    prompt, said = tokenizer.encode(PROMPT, framed=True).ids.tolist(), list[int]()
    while len(said) < tokens:
        ids = np.array([*prompt, *said])
        logits = prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids) + 1, "f16"))
        said.append(int(penalised(np.asarray(logits)[: tokenizer.vocab_size], given, prompt, said).argmax()))
        if said[-1] in tokenizer.eos_ids:
            return said[:-1]
    return said


def one(pair: Pipeline, text: str) -> int:
    return int(pair.target.tokenizer.encode(text).ids[0])


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"presence_penalty": 1.5, "frequency_penalty": 0.5}, {"presence": 1.5, "frequency": 0.5}),
        ({"frequency_penalty": -2}, {"frequency": -2}),
        ({"repeat_penalty": 1.5}, {"repeat": 1.5, "last": 64}),
        ({"repeat_penalty": 1.5, "repeat_last_n": 3}, {"repeat": 1.5, "last": 3}),
        ({"repetition_penalty": 1.5}, {"repeat": 1.5}),
        ({"repeat_penalty": 1.3, "presence_penalty": 1, "logit_bias": {}}, {"repeat": 1.3, "presence": 1, "last": 64}),
    ],
    ids=str,
)
def test_answers_are_those_of_the_definition(server, pair, fields, given) -> None:
    found = post(server, max_tokens=10, n=2, **fields)["choices"]
    wanted = pair.target.tokenizer.decode(answer(pair, given, 10))
    assert [choice["text"] for choice in found] == [wanted] * 2
    plain = post(server, max_tokens=10)["choices"][0]["text"]
    assert (wanted != plain) or fields == {"frequency_penalty": -2}


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_bias_bans_and_forces(server, pair, path, temperature) -> None:
    token = one(pair, " water")
    body = {"max_tokens": 4, "logit_bias": {str(token): 100}, "temperature": temperature, "seed": 1}
    choice = post(server, path, **body)["choices"][0]
    assert (choice["text"] if path == "completions" else choice["message"]["content"]).split() == ["water"] * 4
    more = {"max_tokens": 1, "logprobs": 1 if path == "completions" else True, "temperature": temperature}

    def said(**body: Any) -> str:
        told = post(server, path, **more, **body)["choices"][0]["logprobs"]
        return str(told["tokens"][0] if path == "completions" else told["content"][0]["token"])

    tokenizer = pair.target.tokenizer
    for seed in range(4):
        text = said(seed=seed)
        banned = {str(at): -100 for at in range(tokenizer.vocab_size) if tokenizer.token_bytes(at) == text.encode()}
        assert banned
        assert said(seed=seed, logit_bias=banned) != text


def test_logprobs_are_the_models_own(server, pair) -> None:
    token = one(pair, " water")
    found = post(server, max_tokens=1, logprobs=1, logit_bias={str(token): 100})["choices"][0]["logprobs"]
    ids = pair.target.tokenizer.encode(PROMPT, framed=True).ids
    model = pair.target.model
    own = np.log(shares(np.asarray(prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids) + 1, "f16")))))
    assert found["tokens"] == [" water"]
    assert found["token_logprobs"][0] == pytest.approx(own[token], abs=1e-2)
    assert list(found["top_logprobs"][0].values()) == [pytest.approx(own.max(), abs=1e-2)]


def test_a_grammar_masks_after_the_bias(server, pair) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["ab", "cd"]}}}
    plain = json.loads(post(server, "chat/completions", response_format=form)["choices"][0]["message"]["content"])
    tokenizer = pair.target.tokenizer
    spelling = {i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i)[:2] in (f'"{plain[0]}'.encode(),
                plain[0].encode(), plain[:2].encode())}  # fmt: skip
    bias = {str(i): -100 for i in spelling} | {str(one(pair, " water")): 100}
    other = json.loads(
        post(server, "chat/completions", response_format=form, logit_bias=bias)["choices"][0]["message"]["content"]
    )
    assert {plain, other} == {"ab", "cd"}


def test_a_session_goes_on_with_penalties_of_the_whole_prompt(pair) -> None:
    with tool.serving(pair, talks=Conversations(pair)) as running:
        chat = [{"role": "user", "content": "Who is there, and who is not there?"}]
        body = {"messages": chat, "max_tokens": 8, "repetition_penalty": 1.8}
        first = post(running, "chat/completions", **body)
        chat += [first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        again = post(running, "chat/completions", **body)
        alone = post(running, "chat/completions", **body, sp={"session": False})
    assert again["usage"]["sp"]["session"] == "hit"
    assert again["choices"][0]["message"] == alone["choices"][0]["message"]


def test_responses_take_them_too(server, pair) -> None:
    body = {"input": "Who?", "max_output_tokens": 3, "logit_bias": {str(one(pair, " water")): 100}}
    reply = web.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
    assert reply["usage"]["sp"].get("ignored") is None
    assert reply["output"][0]["content"][0]["text"].split() == ["water"] * 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"logit_bias": [[1, 2]]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": {"1": True}}, "logit_bias.1"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias"),
    ],
    ids=str,
)
def test_what_is_none_is_one_line(server, fields, param) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, given in (("completions", {"prompt": "x"}), ("chat/completions", chat)):
        reply = web.post(f"{server.url}/v1/{path}", json=given | fields, timeout=60)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param)
        assert "\n" not in error["message"]
        assert "leave" in error["message"] or "send" in error["message"]


def test_drafts_are_refused_by_name_and_rest_where_they_are_the_servers() -> None:
    body = {"prompt": "x", "presence_penalty": 1, "sp": {"decode": "ddtree"}}
    with pytest.raises(RequestError, match="cannot be combined with penalties or biases"):
        parse_request("completion", body, Defaults(draft=True))
    options = replace(tool.OPTIONS, decode=DDTree())
    job = parse_request("completion", {"prompt": "x", "presence_penalty": 1}, Defaults(options, draft=True))
    assert job.penalties is not None
