"""Anthropic's Messages API over HTTP: shapes, events in their order, tools, errors, counts, text that must stay."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import serving as tool
import web
from fuzz_texts import changed_json
from serving import document, question
from test_serve_sessions import metric
from test_serve_tools import SEEN, scripted
from thinking_templates import OPENED, SWITCHED
from tool_templates import SCHEMA, TAGGED

from sp.serve.anthropic.reply import error_body
from sp.serve.fields import RequestError
from sp.serve.http import ClientLimits
from sp.serve.text import CompletionStream
from sp.session import Conversations, Pipeline

HELLO: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Who is there?"}],
}
TOOLS: list[dict[str, Any]] = [
    {"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA},
    {"type": "custom", "name": "list_files", "input_schema": {"type": "object"}},
]
SAID = 'Let me look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py", "all": true}}\n</tool_call>'
THOUGHT = "<think>\nHm, who?\n</think>\n\nNobody is there."
HEADER = "x-anthropic-billing-header: cc_version=2.1.{}; cch={};"
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "What is in a.py?"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I must look.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.py"}},
        {"type": "tool_use", "id": "toolu_2", "name": "list_files", "input": {}},
    ]},
    {"role": "user", "content": [
        {"type": "text", "text": "Be quick."},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such folder", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
            {"type": "text", "text": "import this"}, {"type": "image", "source": {"type": "base64"}}]},
    ]},
]  # fmt: skip


@pytest.fixture(scope="module")
def agent(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(scripted(pair, TAGGED, SAID), answer=256) as running:
        yield running


def post(server: tool.Running, body: Any, status: int = 200, path: str = "/v1/messages", **headers: str) -> Any:
    reply = web.post(f"{server.url}{path}", json=body, headers=headers)
    assert reply.status_code == status, reply.text
    return reply.json()


def count(server: tool.Running, body: Any) -> int:
    return int(post(server, body, path="/v1/messages/count_tokens")["input_tokens"])


def events(server: tool.Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream, each checked to have the name that its data has."""
    reply = web.post(f"{server.url}/v1/messages?beta=true", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for part in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def put_together(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks of a stream, by the rules that its events are to follow."""
    blocks = list[dict[str, Any]]()
    inside = False
    for each in found:
        if each["type"] == "content_block_start":
            assert not inside
            assert each["index"] == len(blocks)
            blocks.append(each["content_block"])
            inside, written = True, ""
        elif each["type"] == "content_block_delta":
            assert inside
            assert each["index"] == len(blocks) - 1
            block, delta = blocks[-1], each["delta"]
            kind = delta.pop("type")
            ((key, part),) = delta.items()
            if kind == "input_json_delta":
                written += part
                block["input"] = json.loads(written)
            else:
                assert kind == f"{key}_delta"
                block[key] += part
        elif each["type"] == "content_block_stop":
            assert inside
            inside = False
    assert not inside
    return blocks


def test_a_message_has_the_shape_that_clients_read(server: tool.Running) -> None:
    reply = post(server, HELLO, **{"anthropic-version": "2023-06-01", "anthropic-beta": "any", "x-api-key": "none"})
    chat = {"messages": HELLO["messages"], "max_tokens": 8}
    same = web.post(f"{server.url}/v1/chat/completions", json=chat).json()
    assert (reply["type"], reply["role"]) == ("message", "assistant")
    assert re.fullmatch(r"msg_\w+", reply["id"])
    assert reply["content"] == [{"type": "text", "text": same["choices"][0]["message"]["content"]}]
    assert reply["stop_sequence"] is None
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == same["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == same["usage"]["completion_tokens"]
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["sp"]["kept"] == usage["sp"]["cached"] + usage["sp"]["new"]
    parts = {"role": "user", "content": [{"type": "text", "text": "Who is there?"}]}
    assert post(server, {**HELLO, "messages": [parts]})["content"] == reply["content"]


def test_events_of_a_stream_come_in_their_order(server: tool.Running) -> None:
    found = events(server, HELLO)
    kinds = [each["type"] for each in found]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    whole = post(server, HELLO)
    assert put_together(found) == whole["content"]
    start, end = found[0]["message"], found[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert end["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert end["usage"]["sp"]["reason"]


def test_why_an_answer_ended(server: tool.Running, agent: tool.Running) -> None:
    cut = post(server, {**HELLO, "max_tokens": 2})
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)
    assert post(server, {**HELLO, "max_tokens": 10**9})["usage"]["output_tokens"] <= 64
    far = post(agent, {**HELLO, "max_tokens": 300, "stop_sequences": ["nowhere", "look", "."]})
    assert (far["stop_reason"], far["stop_sequence"]) == ("stop_sequence", "look")
    assert far["content"] == [{"type": "text", "text": "Let me "}]
    (*_, end, _) = events(agent, {**HELLO, "max_tokens": 300, "stop_sequences": ["look"]})
    assert end["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "look"}
    assert post(agent, {**HELLO, "max_tokens": 300})["stop_reason"] == "end_turn"


def test_tools_go_both_ways(agent: tool.Running) -> None:
    body = {**HELLO, "max_tokens": 200, "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]}
    reply = post(agent, body)
    text, call = reply["content"]
    assert (text, reply["stop_reason"]) == ({"type": "text", "text": "Let me look."}, "tool_use")
    assert re.fullmatch(r"toolu_\w+", call.pop("id"))
    assert call == {"type": "tool_use", "name": "read_file", "input": {"path": "a.py", "all": True}}
    assert reply["usage"]["sp"]["ignored"] == ["tools[2] of type web_search_20250305"]
    said = put_together(found := events(agent, body))
    assert [each["type"] for each in said] == ["text", "tool_use"]
    assert said[1]["input"] == call["input"]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"

    reply = post(agent, {**body, "messages": CALLED})
    assert SEEN[-1].text.endswith(
        "Let me look.\n"
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n'
        "<tool_response>\nError: no such folder\n</tool_response>\n"
        "<tool_response>\nimport this\n\n[image left out: the model reads text only]\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nBe quick.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert {"redacted_thinking", "image in tool_result"} < set(reply["usage"]["sp"]["ignored"])


def test_how_a_tool_may_be_chosen(agent: tool.Running, pair: Pipeline) -> None:
    body = {**HELLO, "max_tokens": 200, "tools": TOOLS}
    none = post(agent, {**body, "tool_choice": {"type": "none"}})
    assert [each["type"] for each in none["content"]] == ["text"]
    for choice in ({"type": "any"}, {"type": "tool", "name": "read_file"}):
        forced = post(agent, {**body, "tool_choice": choice})
        assert [each["type"] for each in forced["content"]] == ["tool_use"]
        assert forced["usage"]["sp"]["ignored"] == []
    thinks = TAGGED.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{{ '</think>' if quiet }}{% endif")
    with tool.serving(scripted(pair, thinks, "I know.\n</think>\n\n" + SAID), answer=256) as server:
        reply = post(server, {**body, "tool_choice": {"type": "any"}})
        assert [each["type"] for each in reply["content"]][-1] == "tool_use"
        assert len(reply["usage"]["sp"]["ignored"]) == 1
        assert "tool_choice" in reply["usage"]["sp"]["ignored"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_with_a_signature(pair: Pipeline, stream: bool) -> None:
    body = {**HELLO, "max_tokens": 200, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with tool.serving(scripted(pair, SWITCHED, THOUGHT), answer=256) as server:
        blocks = put_together(events(server, body)) if stream else post(server, body)["content"]
        assert re.fullmatch(r"sp-\w+", blocks[0].pop("signature"))
        assert blocks == [
            {"type": "thinking", "thinking": "Hm, who?"},
            {"type": "text", "text": "Nobody is there."},
        ]
        off = post(server, {**body, "thinking": {"type": "disabled"}})
        assert "</think>" in SEEN[-1].text
        assert off["usage"]["sp"]["ignored"] == []
        post(server, {**body, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}})
        assert "</think>" not in SEEN[-1].text
    with tool.serving(scripted(pair, OPENED, "Hm, who?</think>Nobody."), answer=256) as server:
        assert [each["type"] for each in post(server, body)["content"]] == ["thinking", "text"]


def test_what_a_model_cannot_do_is_told(server: tool.Running) -> None:
    body = {**HELLO, "thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "max"}}
    reply = post(server, {**body, "metadata": {"user_id": "me"}, "context_management": {}, "temperature": 0})
    assert set(reply["usage"]["sp"]["ignored"]) == {
        "thinking.type enabled", "thinking.budget_tokens", "output_config.effort", "context_management",
    }  # fmt: skip


def test_a_count_is_what_the_answer_reads(pair: Pipeline, agent: tool.Running) -> None:
    for messages in (HELLO["messages"], CALLED):
        body = {"model": "x", "messages": messages, "tools": TOOLS, "system": "Be brief."}
        assert count(agent, body) == post(agent, {**body, "max_tokens": 9})["usage"]["input_tokens"]
    with tool.serving(pair, talks=Conversations(pair)) as server:
        body = {"model": "x", "system": "Be brief.", "messages": HELLO["messages"]}
        for _ in range(2):
            usage = post(server, {**body, "max_tokens": 4})["usage"]
            assert count(server, body) == usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert usage["cache_read_input_tokens"] > 0


def test_lines_that_change_with_every_request_are_no_part_of_a_prompt(pair: Pipeline) -> None:
    def body(turn: int) -> dict[str, Any]:
        system = [{"type": "text", "text": HEADER.format(turn, f"{turn:05x}")}, {"type": "text", "text": "Be brief."}]
        talk = [{"role": "assistant", "content": "Me."}, {"role": "user", "content": f"And then, {turn}?"}]
        return {**HELLO, "system": system, "messages": [*HELLO["messages"], *(talk if turn else [])]}

    with tool.serving(pair, talks=Conversations(pair)) as server:
        first, second = (post(server, body(turn))["usage"] for turn in range(2))
        assert (first["sp"]["session"], second["sp"]["session"]) == ("miss", "hit")
        assert second["cache_read_input_tokens"] >= first["input_tokens"] - 4  # the reply's header is read anew
        assert (first["sp"]["left_out_lines"], second["sp"]["left_out_lines"]) == (1, 1)
        assert metric(server, "sp_left_out_lines_total") == 2
        plain = {**body(1), "system": "Be brief."}
        assert count(server, body(1)) == count(server, plain)
        inside = {**plain, "system": f"Be brief.\n{HEADER.format(1, 2)}\nBe kind."}
        assert count(server, inside) == count(server, {**plain, "system": "Be brief.\nBe kind."})
        spoken = {**plain, "messages": [{"role": "user", "content": HEADER.format(1, 2)}]}
        assert count(server, spoken) > count(server, {**plain, "messages": [{"role": "user", "content": "hi"}]})


def test_a_marked_block_stays(pair: Pipeline) -> None:
    """With a share so small that of the other documents next to nothing stays."""
    texts = [document(f"key-{n}", 1234567 + n, 4) for n in range(3)]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    blocks.append({"type": "text", "text": question("key-1")})
    body = {**HELLO, "sp": {"compress": "always", "keep_ratio": 0.1, "return_kept": True}}

    def kept(marked: bool) -> tuple[str, Any]:
        sent = [{**block, **({"cache_control": {"type": "ephemeral"}} if marked and n == 1 else {})}
                for n, block in enumerate(blocks)]  # fmt: skip
        told = post(server, {**body, "messages": [{"role": "user", "content": sent}]})["usage"]["sp"]
        return "".join(part["text"] for part in told["kept_text"] if part["kind"] != "dropped"), told

    with tool.serving(pair) as server:
        text, told = kept(marked=True)
        assert texts[1].strip() in text
        assert told["kept_blocks"] == 1
        assert told["compressed"]
        for marked, given in ((False, {}), (True, {"marked": False})):
            body["sp"] |= given
            text, told = kept(marked=marked)
            assert texts[1].strip() not in text
            assert told["kept_blocks"] == 0


def test_a_stream_that_waits_has_pings(agent: tool.Running, pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    hear = CompletionStream.push

    def slow(self: CompletionStream, token: int) -> bool:
        time.sleep(0.05)
        return hear(self, token)

    monkeypatch.setattr(CompletionStream, "push", slow)
    with tool.serving(scripted(pair, TAGGED, SAID), answer=256, limits=ClientLimits(silent_seconds=0.02)) as waiting:
        found = events(waiting, {**HELLO, "max_tokens": 5})
    assert [each["type"] for each in found].count("ping") > 2
    assert put_together(found) == post(agent, {**HELLO, "max_tokens": 5})["content"]


def test_an_error_late_in_a_stream_is_its_last_event(agent: tool.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RequestError("messages[1].content is at fault")

    monkeypatch.setattr(CompletionStream, "end", fail)
    found = events(agent, {**HELLO, "max_tokens": 5, "system": "Be brief."})
    told = {"type": "invalid_request_error", "message": "messages[0].content is at fault"}
    assert found[-1] == {"type": "error", "error": told}
    assert post(agent, {**HELLO, "system": "Be brief."}, 400)["error"] == told


def test_a_prompt_that_is_too_long_is_told_in_words_that_agents_know() -> None:
    error = RequestError("the prompt has 9 tokens, the context 8", code="context_length_exceeded")
    assert error_body(error)["error"]["message"] == "prompt is too long: the prompt has 9 tokens, the context 8"


def test_errors_have_the_shape_that_clients_read(server: tool.Running) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for body in ([], "x", 3, {}, {"messages": []}, {"messages": 1}):
            told = post(server, body, 400, path)
            assert set(told) == {"type", "error"}
            assert told["type"] == "error"
            assert told["error"]["type"] == "invalid_request_error"
    assert "messages[0].content" in post(server, {"messages": [{"role": "user"}]}, 400)["error"]["message"]
    reply = web.post(f"{server.url}/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    long = {**HELLO, "messages": [{"role": "user", "content": "x" * (1 << 20)}]}
    assert post(server, long, 413)["error"]["type"] == "request_too_large"
    reply = web.get(f"{server.url}/v1/messages/batches")
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")
    assert web.get(f"{server.url}/v1/messages").json()["type"] == "error"
    assert post(server, HELLO, 404, "/v1/other")["error"]["code"] == "not_found"


def test_a_server_without_room_is_overloaded(pair: Pipeline) -> None:
    with tool.serving(pair, queue=1) as server:
        server.worker.check_room = lambda: (_ for _ in ()).throw(  # type: ignore[method-assign]
            RequestError("1 requests wait already", status=429)
        )
        reply = web.post(f"{server.url}/v1/messages", json=HELLO)
        assert (reply.status_code, reply.json()["error"]["type"]) == (429, "rate_limit_error")
        assert reply.headers["retry-after"] == "1"
        server.worker.check_room = lambda: None  # type: ignore[method-assign]
        server.worker.close()
        reply = web.post(f"{server.url}/v1/messages", json=HELLO)
        assert (reply.status_code, reply.json()["error"]["type"]) == (529, "overloaded_error")


def test_any_body_is_answered_or_refused_in_a_line(server: tool.Running, agent: tool.Running) -> None:
    seeds = [
        {**HELLO, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"], "top_k": 3, "top_p": 0.5},
        {**HELLO, "messages": CALLED, "tools": TOOLS,
         "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {**HELLO, "thinking": {"type": "enabled", "budget_tokens": 5},
         "output_config": {"effort": "low"}, "stream": True},
    ]  # fmt: skip
    statuses = set()
    for number in range(240):
        rng = random.Random(number)
        raw = changed_json({**seeds[number % 3], "max_tokens": 1}, rng).encode("utf-8", "surrogatepass")
        where = agent if number % 3 == 1 else server
        path = "/v1/messages/count_tokens" if number % 2 else "/v1/messages"
        reply = web.post(f"{where.url}{path}", content=raw, headers={"content-type": "application/json"})
        statuses.add(reply.status_code)
        assert reply.status_code < 500, raw
        if reply.status_code >= 400:
            assert 0 < len(reply.json()["error"]["message"]) <= 300
    assert {200, 400} <= statuses
