"""How a request's tokens are chosen: sampled as the model says, several answers, log probabilities, JSON."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving as tool
import web
from sampling_reference import LEAST, agree, shares

from sp.decode import Chooser
from sp.serve.fields import Format, RequestError
from sp.serve.grammars import GrammarConstraint, Grammars
from sp.serve.protocol import CompletionJob
from sp.session import Conversations, Pipeline

PROMPT = "The grass is"


def post(server: tool.Running, path: str = "completions", **body: Any) -> dict[str, Any]:
    given = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": "Who is it?"}]}
    reply = web.post(f"{server.url}/v1/{path}", json=given | body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def streamed(server: tool.Running, path: str, **body: Any) -> list[dict[str, Any]]:
    given = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": "Who is it?"}]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with web.stream("POST", f"{server.url}/v1/{path}", json=given | options | body, timeout=60) as reply:
        return [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]


def texts(chunks: list[dict[str, Any]], path: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            said = choice["text"] if path == "completions" else choice["delta"].get("content") or ""
            found[choice["index"]] = found.get(choice["index"], "") + said
    return found


def logits(pair: Pipeline) -> np.ndarray:
    """The model's own, behind the prompt."""
    from sp.models import prefill

    ids = pair.target.tokenizer.encode(PROMPT, framed=True).ids
    cache = pair.target.model.new_cache(len(ids) + 1, "f16")
    return np.asarray(prefill(pair.target.model, ids, np.arange(len(ids)), cache))


def test_first_tokens_follow_the_models_distribution(server: tool.Running, pair: Pipeline) -> None:
    """Over HTTP, of a request for several answers at once and of many, by the seeds that each comes with."""
    filters = {"temperature": 1.5, "top_k": 3, "min_p": 0.001}
    drawn = []
    for seed in range(2):
        found = post(server, n=16, max_tokens=1, logprobs=0, seed=100 * seed, **filters)
        drawn += [choice["logprobs"]["token_logprobs"][0] for choice in found["choices"]]
    own = logits(pair)
    p = shares(own)
    ids = [int(np.abs(np.log(np.maximum(p, 1e-300)) - value).argmin()) for value in drawn]
    assert agree(ids, shares(own, **filters)) > LEAST
    assert len(set(ids)) > 1


def test_greedy_unless_there_is_a_temperature(server: tool.Running) -> None:
    greedy = post(server, max_tokens=6, top_p=0.1, seed=1)
    assert greedy["usage"]["sp"]["sampling"] is None
    assert greedy["choices"][0]["text"] == post(server, max_tokens=6, temperature=0)["choices"][0]["text"]
    hot = [post(server, max_tokens=6, temperature=2) for _ in range(3)]
    assert len({each["choices"][0]["text"] for each in hot}) > 1
    told = hot[0]["usage"]["sp"]["sampling"]
    again = post(server, max_tokens=6, temperature=2, seed=told["seed"])
    assert again["choices"][0]["text"] == hot[0]["choices"][0]["text"]
    assert post(server, max_tokens=6, temperature=2, top_p=0)["choices"][0]["text"] == greedy["choices"][0]["text"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_several_answers_streamed_and_whole(server: tool.Running, path: str) -> None:
    body = {"n": 3, "temperature": 2, "seed": 5, "max_tokens": 5}
    whole, chunks = post(server, path, **body), streamed(server, path, **body)
    said = [c["text"] if path == "completions" else c["message"]["content"] for c in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len(set(said)) > 1
    assert texts(chunks, path) == dict(enumerate(said))
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == [0, 1, 2]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] <= 15
    assert "several answers" in whole["usage"]["sp"]["session_reason"]
    alone = post(server, path, **(body | {"n": 1, "seed": 6}))["choices"][0]
    assert (alone["text"] if path == "completions" else alone["message"]["content"]) == said[1]


def test_several_answers_of_a_compressed_prompt_read_what_was_kept(server: tool.Running) -> None:
    key, value = tool.TASKS[1]
    body = {"messages": tool.chat(key, value), "max_tokens": 8, **tool.ALWAYS}
    one, two = (post(server, "chat/completions", n=n, **body) for n in (1, 2))
    assert [c["message"]["content"] for c in two["choices"]] == [one["choices"][0]["message"]["content"]] * 2
    assert two["usage"]["sp"]["kept_tokens"] == one["usage"]["sp"]["kept_tokens"] < one["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_are_those_of_its_text(server: tool.Running, stream: bool) -> None:
    body = {"logprobs": True, "top_logprobs": 20, "max_tokens": 6}
    if stream:
        chunks = streamed(server, "chat/completions", **body)
        parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
        told, said = [each for part in parts for each in part["content"]], texts(chunks, "chat")[0]
    else:
        choice = post(server, "chat/completions", **body)["choices"][0]
        told, said = choice["logprobs"]["content"], choice["message"]["content"]
    assert bytes(byte for each in told for byte in each["bytes"]).decode() == said
    for each in told:
        assert len(each["top_logprobs"]) == 20
        assert each["logprob"] == pytest.approx(max(one["logprob"] for one in each["top_logprobs"]), abs=1e-5)
        assert sum(math.exp(one["logprob"]) for one in each["top_logprobs"]) <= 1 + 1e-5


def test_logprobs_of_a_completion(server: tool.Running, pair: Pipeline) -> None:
    found = post(server, logprobs=3, max_tokens=5)["choices"][0]
    told = found["logprobs"]
    assert "".join(told["tokens"]) == found["text"]
    assert told["text_offset"] == [len("".join(told["tokens"][:n])) for n in range(len(told["tokens"]))]
    assert told["token_logprobs"][0] == pytest.approx(np.log(shares(logits(pair)).max()), abs=1e-3)
    assert all(len(each) == 3 for each in told["top_logprobs"])


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["fact", "story"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}


def asked(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "found", "strict": True, "schema": schema}}


def fits(value: Any) -> bool:
    """What the schema says, by hand."""
    return (
        list(value) == ["name", "kind", "count", "tags"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and value["kind"] in ("fact", "story")
        and isinstance(value["count"], int)
        and 0 <= value["count"] <= 99
        and 1 <= len(value["tags"]) <= 2
        and all(isinstance(each, bool) for each in value["tags"])
    )


@pytest.mark.parametrize("temperature", [None, 1.5])
def test_answers_keep_to_a_schema(server: tool.Running, temperature: float | None) -> None:
    """The pair writes no JSON of its own: all of it is the mask's doing."""
    pytest.importorskip("llguidance")
    answers = 1 if temperature is None else 2
    body = {"response_format": asked(SCHEMA), "max_tokens": 60, "n": answers, "seed": 2, "temperature": temperature}
    found = post(server, "chat/completions", logprobs=True, **body)["choices"]
    values = [json.loads(choice["message"]["content"]) for choice in found]
    assert all(map(fits, values)), values
    assert {choice["finish_reason"] for choice in found} == {"stop"}
    assert len({json.dumps(value) for value in values}) == answers
    if temperature is None:
        assert json.loads(texts(streamed(server, "chat/completions", **body), "chat")[0]) == values[0]
    assert all(each["logprob"] <= 0 for each in found[0]["logprobs"]["content"])


def test_any_object_and_text(server: tool.Running) -> None:
    pytest.importorskip("llguidance")
    any_object = post(server, "chat/completions", response_format={"type": "json_object"}, max_tokens=20)
    assert any_object["choices"][0]["message"]["content"].startswith("{")
    plain = post(server, "chat/completions", response_format={"type": "text"}, max_tokens=5)
    assert plain["choices"] == post(server, "chat/completions", max_tokens=5)["choices"]


def test_of_several_tokens_that_end_an_answer_all_may_come_where_one_may() -> None:
    """The library before 1.7 knows one; its words may be more than the vocabulary needs."""
    taken: list[int] = []
    words = [np.array(word, np.uint32) for word in ([0b1010, 0, 0], [0b0010, 0, 0])]
    matcher = SimpleNamespace(
        compute_bitmask=lambda: words[len(taken)].tobytes(),
        is_stopped=lambda: len(taken) == 2,
        consume_token=taken.append,
    )
    tokenizer: Any = SimpleNamespace(vocab_size=60, eos_ids=frozenset({3, 40}))
    constraint = GrammarConstraint(matcher, tokenizer, waiting=lambda: False)
    seen = []
    for token in (1, 40):
        allowed = constraint.allowed()
        assert allowed is not None
        seen.append(allowed.tolist())
        constraint.take(token)
    last = constraint.allowed()
    assert last is not None
    assert seen == [[0b1010, 1 << 8, 0], [0b0010, 0, 0]]
    assert (taken, last.tolist()) == ([1, 3], [0b1000, 1 << 8])


@pytest.mark.parametrize(
    "schema",
    [{"type": "foo"}, {"$ref": "#/nope"}, {"not": {"type": "string"}}, {"$ref": "http://example.com/x"},
     {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(?=a)b"}, {"properties": 3}, {"enum": []}],
)  # fmt: skip
def test_schemas_that_are_not_supported_are_refused(server: tool.Running, schema: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": asked(schema), "max_tokens": 5}
    for stream in (False, True):
        reply = web.post(f"{server.url}/v1/chat/completions", json=body | {"stream": stream}, timeout=30)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "response_format")
        assert "not supported" in error["message"]
        assert len(error["message"]) <= 300


def test_a_grammar_waits_for_the_end_of_thinking_and_holds_to_the_end(pair: Pipeline) -> None:
    pytest.importorskip("llguidance")
    tokenizer, state = pair.target.tokenizer, {"thinking": True}
    job = CompletionJob("chat", tool.OPTIONS, format=Format('{"enum": ["ab"]}'))
    rule = Grammars(tokenizer).constraint(job, None, lambda: state["thinking"])
    vocab = pair.target.model.config.vocab
    flat = np.zeros((1, vocab), np.float32)
    flat[0, tokenizer.encode("cat").ids[0]] = 5
    chooser = Chooser(None, 0, constraint=rule)
    assert int(chooser.choose(flat)[0]) == tokenizer.encode("cat").ids[0]
    state["thinking"] = False
    said = [int(chooser.choose(flat)[0]) for _ in range(12)]
    end = next(n for n, token in enumerate(said) if token in tokenizer.eos_ids)
    assert tokenizer.decode(said[:end]) == '"ab"'
    assert set(said[end:]) <= tokenizer.eos_ids


def test_without_the_library_it_is_said(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"llguidance.*pip install 'sp-prefill\[serve\]'"):
        Grammars(pair.target.tokenizer).checked(CompletionJob("chat", tool.OPTIONS, format=Format("{}")))


def test_a_session_goes_on_whatever_the_temperature_and_seed(pair: Pipeline) -> None:
    with tool.serving(pair, talks=Conversations(pair)) as running:
        said = [{"role": "user", "content": "Who is there?"}]
        first = post(running, "chat/completions", messages=said, max_tokens=4)["choices"][0]["message"]["content"]
        said += [{"role": "assistant", "content": first or "."}, {"role": "user", "content": "And who is not?"}]
        found = [
            post(running, "chat/completions", messages=said, max_tokens=8, temperature=2, seed=n) for n in range(3)
        ]
    told = [each["usage"]["sp"] for each in found]
    assert {each["session"] for each in told} == {"hit"}
    assert all(each["cached"] > 0 for each in told)
    assert [each["sampling"]["seed"] for each in told] == [0, 1, 2]
    assert len({each["choices"][0]["message"]["content"] for each in found}) > 1
