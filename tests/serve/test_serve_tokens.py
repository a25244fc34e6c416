"""Endpoints that clients of llama.cpp's server ask: tokens of a text, the text of tokens, what the model is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import serving as tool
import web
from fuzz_texts import changed_json

from sp.session import Pipeline

TEXT = "Où est 😀 l'<|im_end|>?"


def post(server: tool.Running, path: str, body: Any) -> Any:
    reply = web.post(f"{server.url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_text_goes_to_tokens_and_back(server: tool.Running, pair: Pipeline) -> None:
    tokenizer = pair.target.tokenizer
    ids = post(server, "/tokenize", {"content": TEXT})["tokens"]
    assert ids == tokenizer.encode(TEXT).ids.tolist()
    assert post(server, "/detokenize", {"tokens": ids}) == {"content": TEXT}
    plain = post(server, "/tokenize", {"content": TEXT, "parse_special": False})["tokens"]
    assert set(ids) & tokenizer.special_ids
    assert not set(plain) & tokenizer.special_ids
    assert post(server, "/detokenize", {"tokens": plain}) == {"content": TEXT}
    framed = post(server, "/tokenize", {"content": TEXT, "add_special": True})["tokens"]
    assert framed == tokenizer.encode(TEXT, framed=True).ids.tolist()
    pieces = post(server, "/tokenize", {"content": TEXT, "with_pieces": True})["tokens"]
    assert [each["id"] for each in pieces] == ids
    raw = [each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces]
    assert b"".join(raw).decode() == TEXT


def test_props_say_what_the_model_is(server: tool.Running, pair: Pipeline) -> None:
    told = web.get(f"{server.url}/props").json()
    assert told["default_generation_settings"]["n_ctx"] == pair.target.model.config.context
    assert (told["total_slots"], told["model_path"]) == (1, "target.gguf")
    assert pair.target.template is not None
    assert told["chat_template"] == pair.target.template.source
    assert told["modalities"] == {"vision": False, "audio": False}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", {}, "content is missing"),
        ("/tokenize", {"content": "x", "with_pieces": 1}, "with_pieces is 1"),
        ("/detokenize", {"tokens": "x"}, "tokens is 'x'"),
        ("/detokenize", {"tokens": [True]}, "whole numbers"),
        ("/detokenize", {"tokens": [-1]}, "outside the vocabulary"),
        ("/detokenize", {"tokens": [1 << 40]}, "outside the vocabulary"),
        ("/detokenize", [], "send an object"),
    ],
)
def test_what_is_none_is_refused(server: tool.Running, path: str, body: Any, said: str) -> None:
    reply = web.post(f"{server.url}{path}", json=body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]


def test_any_body_is_answered_or_refused_in_a_line(server: tool.Running) -> None:
    seeds = {"/tokenize": {"content": TEXT, "with_pieces": True}, "/detokenize": {"tokens": [1, 2, 3]}}
    for number in range(100):
        path = list(seeds)[number % 2]
        raw = changed_json(seeds[path], random.Random(number)).encode("utf-8", "surrogatepass")
        reply = web.post(f"{server.url}{path}", content=raw, headers={"content-type": "application/json"})
        assert reply.status_code < 500, raw
        assert json.loads(reply.text)
        if reply.status_code >= 400:
            assert 0 < len(reply.json()["error"]["message"]) <= 300
