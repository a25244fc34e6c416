"""A server whose models lie on several GPUs, threads of the host here: answers, streams, grammars, failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serving as tool
import web
from command_line import invoke

from sp.commands.serve import conversations_of
from sp.errors import ConfigError, DeviceError
from sp.models import ContextParallel
from sp.models.shards.shards import SharedModel
from sp.parallel.host import HostGroup
from sp.serve.grammars import GrammarConstraint
from sp.serve.options import ServerOptions
from sp.session import ConversationOptions, Pipeline, embedded, load

KEY, VALUE = tool.TASKS[0]


@pytest.fixture(scope="module")
def shared(pair: Pipeline) -> Pipeline:
    assert pair.drafter is not None
    target = load(embedded("drafter"), device="cpu", group=HostGroup(2))  # as that of `pair`
    return Pipeline(target, pair.drafter, gpus=ContextParallel(HostGroup(2), [pair.drafter.model] * 2))


@pytest.fixture(scope="module")
def on_gpus(shared: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(shared) as running:
        yield running


def ask(server: tool.Running, **changes: Any) -> httpx.Response:
    asked = {"messages": tool.chat(KEY, VALUE), "max_tokens": 10, **tool.ALWAYS} | changes
    return web.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.8, "seed": 7, "n": 2},
        {"temperature": 0.8, "seed": 7, "logprobs": True, "top_logprobs": 2},
        {"stop": ["a"]},
        {"sp": {"off": True}},
        {"repeat_penalty": 1.4, "presence_penalty": 0.5, "temperature": 0.8, "seed": 7},
        {"response_format": {"type": "json_object"}, "max_tokens": 24},
        {"response_format": {"type": "json_object"}, "temperature": 0.9, "seed": 4, "logprobs": True, "max_tokens": 24},
    ],
    ids=str,
)
def test_answers_are_those_of_one_gpu(server: tool.Running, on_gpus: tool.Running, changes: dict[str, Any]) -> None:
    want, got = (ask(each, **changes) for each in (server, on_gpus))
    assert got.status_code == want.status_code == 200, got.text
    for ours, theirs in zip(got.json()["choices"], want.json()["choices"], strict=True):
        assert (ours["message"], ours["finish_reason"]) == (theirs["message"], theirs["finish_reason"])
        if "logprobs" in changes:
            found, expected = ([one["logprob"] for one in each["logprobs"]["content"]] for each in (ours, theirs))
            assert found == pytest.approx(expected, abs=2e-3)
    assert got.json()["usage"]["completion_tokens"] == want.json()["usage"]["completion_tokens"]


def test_a_client_that_leaves_ends_the_work_on_all_gpus(on_gpus: tool.Running, expected: dict[str, str]) -> None:
    asked = {"messages": tool.chat(KEY, VALUE), "max_tokens": 64, "stream": True, **tool.ALWAYS}
    with web.stream("POST", f"{on_gpus.url}/v1/chat/completions", json=asked, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data:") and json.loads(line[5:])["choices"][0]["delta"].get("content"):
                break
    tool.until(lambda: not on_gpus.worker.state["running"])
    assert ask(on_gpus, max_tokens=12).json()["choices"][0]["message"]["content"] == expected[KEY]


def test_a_gpu_that_fails_costs_one_answer(
    on_gpus: tool.Running, shared: Pipeline, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shared.target.model
    assert isinstance(model, SharedModel)
    last: Any = model.shards.models[1]
    whole = type(last).head

    def head(self: Any, x: Any, norm: Any = None) -> Any:
        if self is last:
            raise DeviceError("CUDA error 719: run again")
        return whole(self, x, norm)

    with monkeypatch.context() as patched:
        patched.setattr(type(last), "head", head)
        failed = ask(on_gpus)
    assert failed.status_code == 503
    assert "GPU 1 of 2: CUDA error 719" in failed.json()["error"]["message"]
    assert ask(on_gpus, max_tokens=12).json()["choices"][0]["message"]["content"] == expected[KEY]


def test_a_grammar_that_fails_on_the_first_gpu_leaves_no_other_waiting(
    on_gpus: tool.Running, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, taken = GrammarConstraint.take, []

    def take(self: Any, token: int) -> None:
        taken.append(token)
        if len(taken) == 2:
            raise ConfigError("no word fits")
        whole(self, token)

    before = {thread.name for thread in threading.enumerate()}
    with monkeypatch.context() as patched:
        patched.setattr(GrammarConstraint, "take", take)
        failed = ask(on_gpus, response_format={"type": "json_object"}, max_tokens=24)
    assert failed.status_code >= 400
    assert "no word fits" in failed.json()["error"]["message"]
    assert len(taken) == 2, "one GPU alone goes on with the grammar"
    tool.until(lambda: not {thread.name for thread in threading.enumerate()} - before)
    assert ask(on_gpus, max_tokens=12).json()["choices"][0]["message"]["content"] == expected[KEY]


def service(folder: Path | None, sessions: int = 8) -> Any:
    """What `conversations_of` reads of the options of a server."""
    return SimpleNamespace(
        server=ServerOptions(session_dir=folder, sessions=sessions), options=tool.OPTIONS, memory=ConversationOptions()
    )


def test_sessions_go_on_and_outlive_the_server(shared: Pipeline, pair: Pipeline, tmp_path: Path) -> None:
    """The turns of one GPU, and after a restart in the middle; a grammar and a sampled answer among them."""
    notes, replies = list[str](), list[list[Any]]()
    for pipeline, restarts in ((pair, False), (shared, True)):
        messages, own = tool.chat(KEY, VALUE), []
        changes: list[dict[str, Any]] = [
            {},
            {"temperature": 0.8, "seed": 7},
            {"response_format": {"type": "json_object"}},
        ]
        for turns in [changes[:1], changes[1:]] if restarts else [changes]:
            talks = conversations_of(service(tmp_path if restarts else None), pipeline, notes.append)
            with tool.serving(pipeline, talks=talks) as running:
                for change in turns:
                    reply = ask(running, messages=messages, **change).json()
                    said, told = reply["choices"][0]["message"], reply["usage"]["sp"]
                    own.append((said["content"], told["session"], told["cached"], told["read"]))
                    messages = [*messages, said, {"role": "user", "content": tool.question(KEY)}]
        replies.append(own)
    assert replies[0] == replies[1]
    assert [session for _, session, *_ in replies[1]] == ["miss", "hit", "hit"]
    assert notes == [f"{tmp_path}: sessions of these models: 1, of others: 0, 0.00 GB"]
    assert conversations_of(service(None, 0), shared, notes.append) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gpus", "2", "--device", "cpu"], "--gpus needs GPUs; omit it with --device cpu"),
        (["--target-gpus", "2", "--device", "cpu"], "--target-gpus needs GPUs; omit it with --device cpu"),
        (["--gpus", "2", "--replicas", "2"], "a replica runs on one GPU; omit --gpus and --target-gpus"),
        (["--gpus", "2", "--device", "cpu", "--vram", "20g"], "--vram limits the memory of a single GPU; omit it"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_line(options: list[str], told: str) -> None:
    done = invoke(["serve", "--port", "0", *options])
    assert str(done.exception).startswith(told)
