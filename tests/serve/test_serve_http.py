"""The server over a socket, with the `openai` client and with bytes no client would send."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import serving as tool
import web
from serving import ALWAYS, TASKS, chat, client

openai = pytest.importorskip("openai")


def test_chat_whole_and_streamed_say_the_same(server: tool.Running, expected: dict[str, str]) -> None:
    key, value = TASKS[0]
    ask = client(server).chat.completions.create
    whole = ask(model="any", messages=chat(key, value), extra_body=ALWAYS)
    assert whole.choices[0].message.content == expected[key]
    assert whole.choices[0].finish_reason in ("stop", "length")
    found = whole.usage.model_extra["sp"]
    assert found["compressed"]
    assert 0 < found["kept_tokens"] < whole.usage.prompt_tokens
    assert {"render", "tokenise", "score", "select", "target prefill", "decode"} <= {s["name"] for s in found["stages"]}
    options = {"include_usage": True}
    stream = ask(model="any", messages=chat(key, value), extra_body=ALWAYS, stream=True, stream_options=options)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected[key]
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions_stop_and_length(server: tool.Running) -> None:
    key, value = TASKS[1]
    user = f"{tool.document(key, value)}\n\n{tool.question(key)}"
    prompt = f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    ask = partial(client(server).completions.create, extra_body={"sp": {"off": True}})
    long = ask(model="any", prompt=prompt, max_tokens=3)
    assert (long.choices[0].finish_reason, long.usage.completion_tokens) == ("length", 3)
    whole = ask(model="any", prompt=prompt, max_tokens=8).choices[0].text
    stop = whole[3:5]
    cut = "".join(c.choices[0].text for c in ask(model="any", prompt=prompt, max_tokens=8, stop=stop, stream=True))
    assert cut == whole[: whole.index(stop)]


def test_options_of_a_request_are_those_of_that_request_only(server: tool.Running) -> None:
    ask = client(server).chat.completions.create
    kept = []
    for change in ({"keep_ratio": 0.4}, {"keep_ratio": 0.8, "scorer": "random"}, {"off": True}, {"keep_ratio": 0.4}):
        given = {"sp": change if "off" in change else {"compress": "always", **change}}
        usage = ask(model="any", messages=chat(*TASKS[2]), max_tokens=1, extra_body=given).usage
        kept.append(usage.model_extra["sp"]["kept_tokens"] / usage.prompt_tokens)
    assert kept[0] == kept[3] < kept[1] < kept[2] == 1
    short = ask(model="any", messages=chat(*TASKS[2]), max_tokens=1, extra_body={"sp": {"threshold": 5000}})
    assert re.search("below the threshold of 5000", short.usage.model_extra["sp"]["reason"])


def test_health_models_metrics_and_wrong_paths(server: tool.Running) -> None:
    health = web.get(f"{server.url}/health").json()
    assert health["status"] == "ok"
    assert health["math"] == {"target": "bf16", "drafter": "bf16"}
    assert client(server).models.list().data[0].id == "target"
    text = web.get(f"{server.url}/metrics").text
    assert 'sp_requests_total{outcome="ok"}' in text
    assert 'sp_tokens_total{kind="kept"}' in text
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("POST", "/v1/embeddings", 404)):
        reply = web.request(method, server.url + path)
        assert reply.status_code == status
        assert path in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": -9223372036854775809}', 400, "2\\^53"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "sp": {"\\ud800": 1}}', 400, "unknown option"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "sp": {"scorer": "oracle", "compress": "always", '
         b'"keep_ratio": 1}}', 400, "known needle"),
        (b'{"messages": [{"role": "user", "content": "' + b"7 " * 170_000 + b'"}]}', 400,
         r"context of 163840; sp.keep_ratio 0.5 leaves \d+ of them, which do not fit either: lower it"),
        (b'{"sp": {"compress": "off"}, "messages": [{"role": "user", "content": "' + b"7 " * 90_000 + b'"}]}', 400,
         "context of 163840; compress the prompt with a drafter, shorten it or lower max_tokens"),
        (b'{"messages": "' + b"x" * (1 << 20) + b'"}', 413, "raise --max-body"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_json_error(server: tool.Running, body: bytes, status: int, said: str) -> None:
    def chunked() -> Any:
        yield body

    for content in (body, chunked()):
        headers = {"content-type": "application/json"}
        reply = web.post(f"{server.url}/v1/chat/completions", content=content, headers=headers, timeout=30)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (status, "invalid_request_error")
        assert re.search(said, error["message"])
        assert "Traceback" not in reply.text
        assert "--keep-ratio" not in reply.text


def test_an_error_in_a_stream_has_a_status(server: tool.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp.serve.streams.ACCEPT_SECONDS", 60)  # a machine under load may take its time to refuse
    with pytest.raises(openai.BadRequestError, match="known needle"):
        client(server).chat.completions.create(
            model="any", messages=chat(*TASKS[0]), stream=True,
            extra_body={"sp": {"scorer": "oracle", "compress": "always"}},
        )  # fmt: skip


def test_other_content_types_are_refused(server: tool.Running) -> None:
    reply = web.post(f"{server.url}/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert reply.status_code == 415
