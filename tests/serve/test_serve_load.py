"""The server under load: clients that leave, crowd, stall or break it, and its orderly end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
import serving as tool
import web
from serving import ALWAYS, TASKS, chat, client

from sp import cli
from sp.serve.http import ClientLimits
from sp.session import Pipeline, embedded

openai = pytest.importorskip("openai")


def raw_request(server: tool.Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    """A connection that has sent a request and read nothing."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection


def outcomes(server: tool.Running) -> dict[str, float]:
    metrics = server.worker.metrics.requests
    return {name: metrics.labels(name)._value.get() for name in ("ok", "cancelled", "refused", "failed")}


@pytest.mark.parametrize("stream", [False, True])
def test_the_work_of_a_client_that_left_is_ended(server: tool.Running, stream: bool) -> None:
    before = outcomes(server)
    text = tool.document("quiet-lantern", 7, 150)
    body = {"messages": [{"role": "user", "content": text}], "stream": stream, "max_tokens": 64, "sp": {"off": True}}
    running, waiting = raw_request(server, body), raw_request(server, body)
    tool.until(lambda: server.worker.state["running"] and server.worker.state["waiting"])
    waiting.close()
    running.close()
    tool.until(lambda: not server.worker.state["running"] and not server.worker.state["waiting"])
    assert outcomes(server)["cancelled"] == before["cancelled"] + 2


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_up_under_load(server: tool.Running, expected: dict[str, str]) -> None:
    """Many clients, some slow, some leaving, some sending nonsense; every answer is that of its own question."""
    before = outcomes(server)

    async def polite(ask: Any, number: int) -> None:
        key, value = TASKS[number % len(TASKS)]
        if number % 2:
            reply = await ask(model="any", messages=chat(key, value), extra_body=ALWAYS)
            assert reply.choices[0].message.content == expected[key]
            return
        text = ""
        async for chunk in await ask(model="any", messages=chat(key, value), extra_body=ALWAYS, stream=True):
            text += chunk.choices[0].delta.content or ""
            if number % 3 == 0:
                await asyncio.sleep(0.05)
        assert text == expected[key]

    async def leaving(ask: Any, number: int) -> None:
        stream = await ask(model="any", messages=chat(*TASKS[number % len(TASKS)]), extra_body=ALWAYS, stream=True)
        async for _ in stream:
            break
        await stream.close()

    async def malformed(http: httpx.AsyncClient, number: int) -> None:
        bad = [b"{", b'{"messages": 1}', b"\xff" * 10, b'{"messages": [], "sp": {"keep": 1}}'][number % 4]
        reply = await http.post("/v1/chat/completions", content=bad, headers={"content-type": "application/json"})
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]

    async def everyone() -> None:
        limits = httpx.Limits(max_connections=200)
        async with (
            tool.async_client(server.url) as api,
            httpx.AsyncClient(base_url=server.url, limits=limits, verify=False, timeout=60) as http,
        ):
            ask = api.chat.completions.create
            crowd = [polite(ask, n) for n in range(18)] + [leaving(ask, n) for n in range(4)]
            await asyncio.gather(*crowd, *(malformed(http, n) for n in range(8)))

    mute = [raw_request(server, {"messages": chat(*TASKS[0]), "stream": True} | ALWAYS) for _ in range(3)]
    asyncio.run(everyone())
    tool.until(lambda: not server.worker.state["running"] and not server.worker.state["waiting"])
    after = outcomes(server)
    for connection in mute:  # these never read: their answers lie ready all the same
        assert b"[DONE]" in _all(connection)
    assert after["refused"] - before["refused"] == 8
    assert after["failed"] == before["failed"]
    assert 21 <= after["ok"] - before["ok"] <= 25
    assert sum(after.values()) - sum(before.values()) == 18 + 4 + 8 + 3


def _all(connection: socket.socket) -> bytes:
    data = b""
    connection.settimeout(5)
    while b"[DONE]" not in data and (more := connection.recv(1 << 16)):
        data += more
    connection.close()
    return data


def test_a_full_queue_says_so_and_a_stalled_body_is_dropped(pair: Pipeline) -> None:
    limits = ClientLimits(body_bytes=1 << 20, body_seconds=0.3)
    with tool.serving(pair, queue=2, limits=limits) as small:
        text = tool.document("quiet-lantern", 7, 150)
        body = {"messages": [{"role": "user", "content": text}], "sp": {"off": True}, "user": "me"}
        held = [raw_request(small, body)]
        tool.until(lambda: small.worker.state["running"])
        held += [raw_request(small, body), raw_request(small, body)]
        tool.until(lambda: small.worker.state["waiting"] == 2)
        with pytest.raises(openai.RateLimitError, match="try again later") as caught:
            client(small).chat.completions.create(model="any", messages=chat(*TASKS[0]), user="me")
        assert caught.value.status_code == 429
        slow = socket.create_connection(("127.0.0.1", small.port))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{")  # fmt: skip
        slow.settimeout(5)
        assert b" 408 " in slow.recv(1 << 16)
        for connection in (*held, slow):
            connection.close()
        tool.until(lambda: not small.worker.state["running"])


def test_an_unexpected_error_is_told_without_details_and_the_next_request_is_served(
    pair: Pipeline, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type("OutOfMemoryError", (RuntimeError,), {})("40 GB asked for")  # as CuPy names it
    real, broken = Pipeline.run, iter([RuntimeError("secret"), MemoryError(), full])

    def run(self: Pipeline, *given: Any, **named: Any) -> Any:
        if (error := next(broken, None)) is not None:
            raise error
        return real(self, *given, **named)

    monkeypatch.setattr(Pipeline, "run", run)
    with tool.serving(pair) as fresh:
        ask = client(fresh).chat.completions.create
        for status, said in (
            (500, "internal error"),
            (503, "out of memory"),
            (503, "GPU's memory is full.*a lower sp.keep_ratio"),
        ):
            with pytest.raises(openai.InternalServerError, match=said) as caught:
                ask(model="any", messages=chat(*TASKS[0]))
            assert caught.value.status_code == status
            assert "secret" not in str(caught.value)
        reply = ask(model="any", messages=chat(*TASKS[0]), extra_body=ALWAYS)
        assert reply.choices[0].message.content == expected[TASKS[0][0]]


def test_the_server_adds_little_to_the_time_to_first_token() -> None:
    """Of the whole embedded pair. Generous, as other programs run; `experiments/serve_load.py` measures it."""
    added = []
    with tool.serving(tool.load()) as whole:
        for number in range(7):
            body = {"messages": chat(*TASKS[number % len(TASKS)]), "stream": True, "max_tokens": 2} | ALWAYS
            body["stream_options"] = {"include_usage": True}
            start, first = time.perf_counter(), 0.0
            with web.stream("POST", f"{whole.url}/v1/chat/completions", json=body) as reply:
                lines = []
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        first = first or time.perf_counter() - start
                        lines.append(json.loads(line[6:]))
            added.append(1e3 * first - lines[-1]["usage"]["sp"]["ttft_ms"])
    assert sorted(added)[3] < 30, added  # Nagle's algorithm alone would add 40


@pytest.mark.slow
def test_a_killed_server_starts_clean_and_ends_in_order_on_sigterm(
    expected: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL in the middle of an answer, then the same command: same port, nothing left over, right answers, and an
    answer that SIGTERM does not cut short.
    """
    key, value = TASKS[0]
    body = {"messages": chat(key, value), "stream": True, "max_tokens": 200} | ALWAYS
    port, drafter = "0", str(embedded("drafter"))  # those of `pair`
    for life in range(2):
        command = [sys.executable, "-m", "sp.cli", "serve", "--port", port, "--device", "cpu", "--keep-ratio", "0.5",
                   "--target", drafter, "--drafter", drafter, "--grace", "20"]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            url = re.search("http://[0-9.:]+", process.stderr.readline())[0]  # type: ignore
            port = url.rpartition(":")[2]
            tool.until(lambda at=url: _up(at), 30, pause=0.05)
            with web.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as reply:
                lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
                if life == 0:
                    assert [next(lines), next(lines)]
                    process.kill()
                    with pytest.raises(httpx.RemoteProtocolError):
                        list(lines)
                    assert process.wait(10) == -signal.SIGKILL
                    continue
                deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines]
            assert "".join(deltas).startswith(expected[key])
            assert web.get(f"{url}/health").json()["waiting"] == 0
            told = web.get(f"{url}/metrics").text
            assert 'sp_requests_total{outcome="ok"} 1.0' in told
            assert "cancelled" not in told
            assert 'sp_session_requests_total{found="miss"} 1.0' in told  # nothing is left of the other life's session
            assert "sp_sessions 1.0" in told
            _refused(port, monkeypatch, capsys)
            asyncio.run(_ended_while_it_answers(url, process))
            out, said = process.communicate(timeout=20)
            assert process.returncode == 0, (out, said)
            assert "Traceback" not in said
        finally:
            process.kill()
            process.communicate()


def _refused(port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A second server on a port that is taken."""
    monkeypatch.setattr("sys.argv", ["sp", "serve", "--port", port])
    with pytest.raises(SystemExit) as taken:
        cli.main()
    told = capsys.readouterr().err
    assert (taken.value.code, told.count("\n")) == (2, 1)
    assert "choose --host and --port" in told


async def _ended_while_it_answers(url: str, process: subprocess.Popen[str]) -> None:
    """SIGTERM behind the first piece of an answer, of which all comes."""
    async with tool.async_client(url) as api:
        ask = api.chat.completions.create
        parts = (await ask(model="any", messages=chat(*TASKS[0]), stream=True, max_tokens=12)).__aiter__()
        pieces = [(await parts.__anext__()).choices[0].delta.content]
        process.send_signal(signal.SIGTERM)
        async for chunk in parts:
            pieces.append(chunk.choices[0].finish_reason)
    assert pieces[-1] in ("stop", "length")


class Counting(Pipeline):
    """Counts the tokens of its answers."""

    tokens = 0

    def run(self, *given: Any, on_token: Any, **named: Any) -> Any:
        def count(token: int) -> Any:
            Counting.tokens += 1
            time.sleep(0.01)
            return on_token(token)

        return super().run(*given, on_token=count, **named)


def test_a_client_that_leaves_in_the_middle_of_an_answer_frees_its_work(
    pair: Pipeline, expected: dict[str, str]
) -> None:
    key, value = TASKS[0]
    with tool.serving(Counting(pair.target, pair.drafter), answer=4096) as fresh:
        prompt = "The grass is green. " * 20
        body = {"prompt": prompt, "stream": True, "max_tokens": 4096, "sp": {"off": True}}
        Counting.tokens = 0
        with web.stream("POST", f"{fresh.url}/v1/completions", json=body, timeout=30) as reply:
            assert next(line for line in reply.iter_lines() if line)
            after = client(fresh).chat.completions.with_raw_response.create
        answer = after(model="any", messages=chat(key, value), extra_body=ALWAYS, max_tokens=12).parse()
        assert answer.choices[0].message.content == expected[key]
        assert Counting.tokens < 200
        assert outcomes(fresh)["cancelled"] == 1


def _up(url: str) -> bool:
    try:
        return web.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False
