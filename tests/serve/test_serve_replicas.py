"""Two replicas behind one door: each conversation stays where it began, and what is killed costs one clear error."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving as tool
import web

from sp import cli, cluster
from sp.chat import Thinking
from sp.errors import ConfigError
from sp.serve.fields import RequestError
from sp.serve.http import ClientLimits, Server, listen
from sp.serve.router import PrefixIndex, prefixes_of
from sp.session import ConversationOptions, embedded
from sp.session.device_memory import Size
from sp.session.options import ModelOptions, PlaceOptions

pytest.importorskip("ray.serve")  # and so before `join` says that no other host may reach it

from sp.commands.serve import ServiceOptions, open_router, open_service
from sp.serve import replica
from sp.serve.options import ServerOptions
from sp.serve.replica import deployed
from sp.serve.router import AnswerRelay, RouterService

ASKED = ServiceOptions(
    ModelOptions(), None, PlaceOptions(device="cpu"), tool.OPTIONS, Thinking(), ConversationOptions(),
    ServerOptions(max_tokens=64, session_memory=Size(1 << 30), queue=16, max_body=1),
)  # fmt: skip
WHOLE = {"sp": {"off": True}}


@pytest.fixture(scope="module")
def three() -> Iterator[cluster.Cluster]:
    """A cluster of one CPU more than two replicas share: it is for one that cannot start."""
    from ray import serve
    from ray.serve._private import client

    found = cluster.join("test", workers=max(2, os.cpu_count() or 1) + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "HEALTH_SECONDS", 0.5)
        patch.setattr(client, "CLIENT_POLLING_INTERVAL_S", 0.1, raising=False)
        yield found
        serve.shutdown()
    found.close()


@pytest.fixture(scope="module")
def url(three: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where two replicas are, of the same pair as `pair`."""
    (target := tmp_path_factory.mktemp("models") / "target.gguf").symlink_to(embedded("drafter"))
    with open_router(replace(ASKED, models=ModelOptions(target, embedded("drafter"))), 2, None, ("*",), print) as (
        door,
        model,
    ):
        assert model == "target"
        server, listener = Server(door, grace=5), listen("127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_on, args=[listener])
        thread.start()
        tool.until(lambda: server.started, 30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def post(url: str, messages: list[dict[str, Any]], **body: Any) -> httpx.Response:
    return web.post(f"{url}/v1/chat/completions", json={"messages": messages, "max_tokens": 8, **body}, timeout=120)


def test_messages_are_answered_behind_the_door_and_its_errors_have_their_shape(url: str) -> None:
    said = {"model": "x", "max_tokens": 4, "messages": [{"role": "user", "content": "Who is there?"}]}
    reply = web.post(f"{url}/v1/messages", json=said, timeout=120)
    assert (reply.status_code, reply.json()["type"]) == (200, "message")
    reply = web.post(f"{url}/v1/messages", content=b"{}", headers={"content-type": "text/plain"})
    assert (reply.status_code, reply.json()["type"]) == (415, "error")


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = web.get(f"{url}/health", timeout=30).json()
    return found


def at_work(url: str) -> list[int]:
    """Processes that have a request in hand."""
    return [each["process"] for each in health(url)["replicas"] if each["running"]]


def counted(url: str, name: str) -> list[float]:
    """A metric of each replica that has it."""
    lines = web.get(f"{url}/metrics").text.splitlines()
    return sorted(float(line.split()[1]) for line in lines if line.startswith(name) and 'replica="' in line)


def long_chat() -> list[dict[str, Any]]:
    """A chat that takes a replica some seconds to read."""
    text = tool.document("slow-river", 4711, 120)
    return [{"role": "user", "content": [{"type": "text", "text": each} for each in (text, "What is it?")]}]


@pytest.mark.slow
def test_a_conversation_stays_where_it_began_and_others_go_elsewhere(url: str) -> None:
    before = counted(url, "sp_sessions{")
    talks = [tool.chat(*task) for task in tool.TASKS[:4]]
    for turn in range(3):
        for messages in talks:
            reply = post(url, messages, **WHOLE).json()
            assert reply["usage"]["sp"]["session"] == ("hit" if turn else "miss")
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "And what else?"}]
    assert [now - then for now, then in zip(counted(url, "sp_sessions{"), before, strict=True)] == [2, 2]


@pytest.mark.slow
def test_answers_streams_and_errors_are_those_of_one_server(url: str, expected: dict[str, str]) -> None:
    for key, value in tool.TASKS[4:6]:
        always = {"sp": {"compress": "always", "session": False}, "max_tokens": 12}
        whole = post(url, tool.chat(key, value), **always)
        assert whole.json()["choices"][0]["message"]["content"] == expected[key]
        assert len(whole.headers.get_list("x-request-id")) == 1
        body = {"messages": tool.chat(key, value), "stream": True, **always}
        with web.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
            events = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        pieces = [json.loads(each)["choices"][0]["delta"].get("content") or "" for each in events[:-1]]
        assert "".join(pieces) == expected[key]
        assert sum(bool(piece) for piece in pieces) > 1
    assert "<textarea" in web.get(f"{url}/").text
    assert [each["id"] for each in web.get(f"{url}/v1/models").json()["data"]] == ["target"]
    other = web.get(f"{url}/v1/models/other", headers={"origin": "http://a.b"})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert other.headers["access-control-allow-origin"] == "*"
    send = partial(web.post, f"{url}/v1/chat/completions", headers={"content-type": "application/json"})
    assert [send(content=raw).status_code for raw in (b"{", b'{"messages": 3}', b"x" * (2 << 20))] == [400, 400, 413]
    assert web.post(f"{url}/v1/chat/completions", content=b"{}").status_code == 415


@pytest.mark.slow
def test_nothing_of_it_listens_on_a_network(three: cluster.Cluster, url: str) -> None:
    """Every listening socket of the cluster's processes is on a loopback address."""
    import psutil

    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = {
        (process.name(), each.laddr.ip)
        for process in family
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert any(name.startswith("ray::") for name, _ in found)
    assert {address for _, address in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, found


@pytest.mark.slow
def test_a_client_that_leaves_ends_the_work(url: str) -> None:
    before = counted(url, 'sp_requests_total{outcome="cancelled"')
    with pytest.raises(httpx.ReadTimeout):
        web.post(f"{url}/v1/chat/completions", json={"messages": long_chat(), **WHOLE}, timeout=0.5)
    tool.until(lambda: not at_work(url), 60, pause=0.1)
    assert sum(counted(url, 'sp_requests_total{outcome="cancelled"')) == sum(before) + 1


@pytest.mark.slow
def test_a_killed_replica_costs_one_clear_error_and_is_replaced(url: str) -> None:
    before = {each["process"] for each in health(url)["replicas"]}
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(post, url, long_chat(), **WHOLE)
        tool.until(lambda: bool(at_work(url)), 30, pause=0.05)
        (killed,) = at_work(url)
        os.kill(killed, signal.SIGKILL)
        reply = lost.result(timeout=60)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "replica_lost")
    assert reply.headers["retry-after"] == "1"
    talks = [tool.chat(*task) for task in tool.TASKS[:4]]
    assert [post(url, each, **WHOLE).status_code for each in talks] == [200] * 4, "the other one goes on at once"
    tool.until(lambda: len(health(url)["replicas"]) == 2, 120, pause=0.25)
    assert len(before | {each["process"] for each in health(url)["replicas"]}) == 3
    assert [post(url, each, **WHOLE).status_code for each in talks] == [200] * 4


@pytest.mark.slow
def test_what_cannot_start_is_told_in_one_line(
    three: cluster.Cluster, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing := tmp_path / "x.gguf").write_bytes(b"none")
    asked = replace(ASKED, models=ModelOptions(missing))
    told = r"^no replica could be started: .*x\.gguf.*$"
    joined = replace(three, alone=False, opened=False)
    with pytest.raises(ConfigError, match=told), deployed(joined, partial(open_service, asked), 1, "CPU"):
        pass
    monkeypatch.setattr(cluster, "RETURN_SECONDS", 0.0)  # no GPU will come back
    told = r"^--replicas 2: the cluster has 0 GPUs free, and each replica needs one; "
    with pytest.raises(ConfigError, match=told), deployed(joined, partial(open_service, asked), 2, "GPU"):
        pass
    assert post(url, tool.chat(*tool.TASKS[0]), **WHOLE).status_code == 200, "the others serve on"


@pytest.mark.parametrize(("begun", "streams"), [(False, False), (True, False), (True, True)])
def test_when_a_replica_ends_its_client_hears_of_it_once(begun: bool, streams: bool) -> None:
    kind = b"text/event-stream" if streams else b"application/json"

    async def parts() -> AsyncIterator[Any]:
        yield None
        if begun:
            yield {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
            yield {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
        raise RuntimeError("the actor died")

    sent: list[Any] = []

    async def send(part: Any) -> None:
        sent.append(part)

    async def run() -> AnswerRelay:
        answer = AnswerRelay(send, 1.0)
        await answer.relay(parts())
        return answer

    if not begun:
        with pytest.raises(RequestError, match="the replica that served the request failed"):
            asyncio.run(run())
        assert sent == []
        return
    assert asyncio.run(run()).ended == streams
    assert len(sent) == 2 + streams
    if streams:
        assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "replica_lost"
        assert not sent[-1]["more_body"]


class Gone:
    """A handle of Ray Serve whose replicas were all lost."""

    def options(self, **_: Any) -> None:
        return None

    def broadcast(self, method: str) -> Any:
        raise RuntimeError(f"no replica for {method}")


def test_health_says_that_no_replica_is_running() -> None:
    router = RouterService(Gone(), 2, ClientLimits())
    reply = asyncio.run(router.health(None))  # type: ignore[arg-type]
    lost = {"status": "no replica is running", "model": None, "asked": 2, "replicas": []}
    assert (reply.status_code, json.loads(reply.body)) == (503, lost)
    router.close()
    assert json.loads(asyncio.run(router.health(None)).body)["status"] == "stopping"  # type: ignore[arg-type]


def test_prefixes_end_after_messages_from_the_first_of_the_user_on() -> None:
    system, hello = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}
    one = prefixes_of({"messages": [system, hello]})
    two = prefixes_of({"messages": [system, hello, {"role": "assistant", "content": "Hi"}, hello]})
    assert (len(one), len(two)) == (1, 3)
    assert two[0] == one[0]
    assert not set(one) & set(prefixes_of({"messages": [system, {"role": "user", "content": "Good day"}]}))
    texts = [prefixes_of({"prompt": text}) for text in ("a" * 1500, "a" * 1024 + "b", "b")]
    assert texts[0][0] == texts[1][0] != texts[2][0]
    assert prefixes_of({"input": [system, hello]}) == one, "a Responses request"
    assert prefixes_of({"input": "b"}) == texts[2]
    named = [prefixes_of({"messages": [each], "prompt_cache_key": "mine"}) for each in (hello, system)]
    assert named[0][0] == named[1][0]
    for odd in ({}, {"messages": [1, None]}, {"messages": {}, "prompt": 3}, {"messages": []}):
        assert isinstance(prefixes_of(odd), tuple)


def test_the_longest_prefix_decides_unless_its_holder_is_too_busy() -> None:
    held = PrefixIndex[str](most=4)
    held.add("a", "x")
    held.add("ab", "y")
    assert held.order("abc", {"x": 0, "y": 1, "z": 0})[0] == "y"
    assert held.order("abc", {"x": 0, "y": 3, "z": 1})[0] == "x"
    assert held.order("abc", {"x": 0, "z": 0})[0] in "xz", "y is gone"
    assert {held.order("new", {"x": 0, "z": 0})[0] for _ in range(2)} == {"x", "z"}, "equals take turns"
    held.add("cdef", "z")
    assert held.order("ab", {"x": 0, "y": 1})[0] == "x", "only the last four are remembered"


def test_an_address_needs_replicas(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["sp", "serve", "--address", "10.0.0.1:6379"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert (
        capsys.readouterr().err
        == "sp: error: --address needs several replicas; add --replicas 2 or more, or omit --address\n"
    )
