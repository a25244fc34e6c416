"""The front over HTTP: what passes unchanged, what is shortened, and what is said where something is wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from fronting import Behind, before
from test_front_history import story

from sp.errors import ConfigError
from sp.front import proxy
from sp.front.history import History
from sp.front.rules import Rules
from sp.front.shorten import Compressor
from sp.front.upstream import upstream_of

TEXT = story(1, 120, "The password of the archive is vermilion.")
ASKS = {"model": "m", "messages": [{"role": "user", "content": f"{TEXT}\n\nWhat is the password of the archive?"}]}
CHAT = "/v1/chat/completions"
PASSED = [
    ("GET", "/v1/models?a=%20b", b""),
    ("POST", "/v1/embeddings", b'{"input": "x"}'),
    ("DELETE", "/v1/files/1", b""),
    ("POST", CHAT, b"{no json"),
    ("POST", CHAT, b'{"messages":  [ {"role":"user","content":"Hi"}]}'),
]
EVENTS = (
    {"choices": [{"delta": {"content": "ä"}}]},
    {"choices": [], "usage": {"prompt_tokens": 321}},
)


@pytest.fixture
def client() -> httpx.Client:
    return httpx.Client(verify=False, timeout=20, trust_env=False)


def test_everything_else_passes_unchanged(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    behind.extra, behind.status = {"X-Own": "yes"}, 418
    with before(behind.url, words) as (url, _):
        for method, path, body in PASSED:
            reply = client.request(
                method, url + path, content=body, headers={"Authorization": "Bearer k", "X-Mine": "1"}
            )
            assert (reply.status_code, reply.content, reply.headers["x-own"]) == (418, behind.reply, "yes")
            got = behind.got[-1]
            assert (got[0], got[1], got[3]) == (method, path, body)
            assert (got[2]["authorization"], got[2]["x-mine"]) == ("Bearer k", "1")
            assert got[2]["host"] == behind.url.removeprefix("http://")


def test_a_long_text_is_shortened_and_told(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    with before(behind.url, words) as (url, front):
        reply = client.post(f"{url}/v1/chat/completions", json=ASKS)
        sent = behind.body["messages"][0]["content"]
        assert "vermilion" in sent
        assert len(sent) < len(TEXT) / 3
        usage = reply.json()["usage"]
        assert usage["prompt_tokens"] == 7
        assert usage["sp"]["shortened"] == 1
        assert usage["sp"]["sent_tokens"] < usage["sp"]["tokens"] / 2
        assert int(reply.headers["x-sp-sent-tokens"]) == usage["sp"]["sent_tokens"]
        for off in ({"json": {**ASKS, "sp": {"off": True}}}, {"json": ASKS, "headers": {"x-sp-keep-ratio": "off"}}):
            client.post(f"{url}/v1/chat/completions", **off)
            assert behind.body == ASKS
        client.post(f"{url}/v1/chat/completions", json={**ASKS, "sp": {"keep_ratio": 0.5}})
        assert len(sent) * 1.5 < len(behind.body["messages"][0]["content"])
        assert "sp" not in behind.body
        told = client.get(f"{url}/metrics").text
        assert 'sp_front_tokens_total{kind="upstream_prompt"} 14.0' in told
        page = client.get(url).text
        assert "vermilion" in page
        assert "<script" not in page
        assert not front.history.counted


def test_streams_are_byte_equal(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    behind.media = "text/event-stream"
    behind.reply = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in EVENTS) + b"data: [DONE]"
    with before(behind.url, words) as (url, front):
        for body in ({"messages": [{"role": "user", "content": "Hi"}], "stream": True}, {**ASKS, "stream": True}):
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
                assert b"".join(reply.iter_raw()) == behind.reply + b"\n\n"
        assert "vermilion" in behind.body["messages"][0]["content"]
        assert front.metrics.tokens.labels("upstream_prompt")._value.get() == 642


def test_nothing_behind(words: Compressor, client: httpx.Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with before(url, words) as (front, _):
        start = time.perf_counter()
        reply = client.post(f"{front}/v1/chat/completions", json=ASKS)
        assert time.perf_counter() - start < 5
        assert reply.status_code == 502
        assert "cannot be reached" in reply.json()["error"]["message"]
        reply = client.post(f"{front}/v1/messages", json=ASKS)
        assert reply.status_code == 502
        assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", "api_error")


WISHES = [
    ({"keep_ratio": 0}, "keep_ratio must be above 0 and at most 1, not 0"),
    ({"keep_ratio": -1}, "keep_ratio must be above 0 and at most 1, not -1"),
    ({"keep_ratio": 2}, "keep_ratio must be above 0 and at most 1, not 2"),
    ({"keep_ratio": "x"}, "sp: keep_ratio must be float"),
    ({"kepp": 1}, "unknown option of sp"),
    (3, "sp is 3; send an object"),
    ({"max_prompt_tokens": 1}, "at least 64"),
    ({"recall": 1}, "sp: recall must be bool"),
    ({"max_prompt_tokens": 640, "threshold": 0}, None),
]


@pytest.mark.parametrize(("sp", "said"), WISHES)
def test_wrong_wishes_are_refused_in_a_line(behind: Behind, words: Compressor, client: httpx.Client, sp, said) -> None:
    with before(behind.url, words) as (url, _):
        reply = client.post(f"{url}/v1/chat/completions", json={**ASKS, "sp": sp})
        if said is None:  # it fits
            assert reply.status_code == 200
            return
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]
        assert not behind.got


def test_what_cannot_fit_is_too_long(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    with before(behind.url, words, Rules(0.2, 0, 100)) as (url, _):
        body = {"messages": [{"role": "system", "content": TEXT}, {"role": "user", "content": "Who?"}]}
        reply = client.post(f"{url}/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert not behind.got


def test_large_bodies_are_read_and_written_apart_from_the_loop(
    behind: Behind, words: Compressor, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other requests wait for what runs on the loop, and a body of many small values takes seconds."""
    loops = list[str]()

    def told(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                loops.append(function.__name__)
            return function(*arguments)

        return call

    for name in ("_json_object", "with_strings", "without_member", "with_member"):
        monkeypatch.setattr(f"sp.front.proxy.{name}", told(getattr(proxy, name)))
    monkeypatch.setattr(History, "too_short", told(History.too_short))
    numbers = list(range(20_000))
    behind.reply = json.dumps({"usage": {"prompt_tokens": 7}, "logprobs": numbers}).encode()
    with before(behind.url, words) as (url, _):
        large = client.post(url + CHAT, json={**ASKS, "numbers": numbers, "sp": {"keep_ratio": 0.3}})
        assert not loops
        assert large.json()["usage"]["sp"]["shortened"] == 1
        assert behind.body["numbers"] == numbers
        assert len(behind.body["messages"][0]["content"]) < len(TEXT) / 2
        client.post(url + CHAT, json=ASKS)
        assert {"_json_object", "too_short", "with_strings"} == set(loops)  # of a small one: no thread to wait for


def test_the_client_of_openai(behind: Behind, words: Compressor) -> None:
    openai = pytest.importorskip("openai")
    behind.reply = json.dumps(
        {"id": "x", "object": "chat.completion", "created": 1, "model": "m",
         "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Vermilion."}}],
         "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
    ).encode()  # fmt: skip
    with before(behind.url, words) as (url, _):
        plain = httpx.Client(verify=False, timeout=20)
        asker = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=plain)
        reply = asker.chat.completions.create(**ASKS)
        assert reply.choices[0].message.content == "Vermilion."
        assert reply.usage.sp["shortened"] == 1


def test_addresses() -> None:
    assert upstream_of("https://api.example.com/v1") == "https://api.example.com"
    for wrong in ("", "localhost:8080", "ftp://x", "http://", "http://a b:x", "http://u:p@h", "http://h?x=1"):
        with pytest.raises(ConfigError, match="--upstream"):
            upstream_of(wrong)


def test_questions_are_answered_by_the_server_behind(behind: Behind, tmp_path, monkeypatch, capsys) -> None:
    """`sp eval file --upstream`: the full text and what a scorer keeps of it are asked, as a user's message."""
    from sp.cli import main

    document = story(3, 80, "The password of the archive is vermilion.")
    asked = {"context": document, "question": "What is the password of the archive?", "answers": ["vermilion"]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(asked) + "\n")
    behind.media = "text/event-stream"
    behind.reply = b'data: {"choices": [{"delta": {"content": "It is vermilion."}}]}\n\ndata: [DONE]'
    words = ["--scorer", "bm25", "--no-controls", "--keep-ratio", "0.3", "--json"]
    line = ["sp", "eval", "file", str(tmp_path / "asked.jsonl"), "--upstream", behind.url, *words]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit, match="0"):
        main()
    told = json.loads(capsys.readouterr().out)
    assert {each["accuracy"] for each in told["results"]} == {1}
    texts = [json.loads(each[3])["messages"][0]["content"] for each in behind.got if each[1] == CHAT]
    assert len(texts) == 2
    assert texts[0].startswith(document)
    assert len(texts[1]) < len(texts[0]) / 2
    assert "vermilion" in texts[1]
