"""What stands before a request: room, ids, a line of log, other origins, bodies that cost more than their bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serving as tool
import web
from fuzz_bodies import fuzz

from sp.errors import ConfigError
from sp.serve.fields import MOST_VALUES, RequestError, check_shape
from sp.serve.http import AT_ONCE, Bodies, ClientLimits, origins_of
from sp.session import Pipeline

HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def test_models_by_name(server: tool.Running) -> None:
    one = web.get(f"{server.url}/v1/models/target").json()
    assert (one["id"], one["object"]) == ("target", "model")
    assert abs(one["created"] - time.time()) < 3600
    for name in ("other", "a/b", "x" * 500):
        reply = web.get(f"{server.url}/v1/models/{name}")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (404, "model_not_found")
        assert len(error["message"]) <= 300


@pytest.mark.parametrize(
    ("sent", "kept"), [("mine.1:a_b-c", True), ("x" * 65, False), ("a b", False), ("é".encode(), False), ("", False)]
)
def test_request_ids_and_a_line_each(
    server: tool.Running, caplog: pytest.LogCaptureFixture, sent: Any, kept: bool
) -> None:
    with caplog.at_level(logging.INFO, logger="sp.serve.access"):
        reply = web.post(f"{server.url}/v1/chat/completions", json=HELLO, headers={"x-request-id": sent})
        own = reply.headers["x-request-id"]
        assert own == sent if kept else re.fullmatch("req-[0-9a-f]{16}", own)
        tool.until(lambda: any(own in record.getMessage() for record in caplog.records))
    (line,) = [record.getMessage() for record in caplog.records if own in record.getMessage()]
    assert re.fullmatch(rf"127\.0\.0\.1 POST /v1/chat/completions 200 \d+\.\d{{3}} s {re.escape(own)}", line)


def test_errors_have_ids_and_nothing_can_forge_a_line(server: tool.Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sp.serve.access"):
        reply = web.get(f"{server.url}/no%0Ahere%20200" + "x" * 300, headers={"x-request-id": "e1"})
        assert (reply.status_code, reply.headers["x-request-id"]) == (404, "e1")
        tool.until(lambda: bool(caplog.records))
    line = caplog.records[-1].getMessage()
    assert "\n" not in line
    assert len(line) < 160
    assert line.startswith("127.0.0.1 GET /no%0Ahere%20200x")


def test_other_origins_only_by_option(server: tool.Running, pair: Pipeline) -> None:
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "content-type,authorization"}  # fmt: skip
    url = "/v1/chat/completions"
    assert web.options(server.url + url, headers=asked).status_code == 405
    assert "access-control-allow-origin" not in web.post(server.url + url, json=HELLO, headers=asked).headers
    with tool.serving(pair, cors=("http://localhost:3000",)) as open_:
        before = web.options(open_.url + url, headers=asked)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "http://localhost:3000"
        for body, status in ((HELLO, 200), ({"messages": 1}, 400)):
            reply = web.post(open_.url + url, json=body, headers=asked)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (status, asked["Origin"])
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
        stranger = asked | {"Origin": "http://evil.example"}
        assert "access-control-allow-origin" not in web.post(open_.url + url, json=HELLO, headers=stranger).headers


@pytest.mark.parametrize("given", ["localhost", "http://a/b", "http://a\n", "", "http://" + "x" * 900 + "/"])
def test_what_is_no_origin(given: str) -> None:
    with pytest.raises(ConfigError, match="--cors is") as caught:
        origins_of([given])
    assert len(str(caught.value)) <= 300


def test_a_full_queue_is_told_before_the_body_is_read(pair: Pipeline) -> None:
    with tool.serving(pair, queue=1) as small:
        worker = small.worker
        worker.limit = 0
        for kind in ("chat/completions", "completions"):
            head = (f"POST /v1/{kind} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    "Content-Length: 1000000\r\n\r\n")  # fmt: skip
            with socket.create_connection(("127.0.0.1", small.port)) as connection:
                connection.settimeout(5)
                connection.sendall(head.encode())  # and not a byte of the body
                told = connection.recv(1 << 16)
            assert told.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: 1" in told.lower()


def test_all_bodies_together_are_limited_and_given_back() -> None:
    def request(size: int, sent: asyncio.Event | None) -> Any:
        async def stream() -> Any:
            yield b"x" * size
            if sent:
                await sent.wait()

        return SimpleNamespace(headers={"content-type": "application/json"}, stream=stream)

    async def crowd() -> list[Any]:
        bodies, hold = Bodies(ClientLimits(body_bytes=1000)), asyncio.Event()

        async def read(sent: asyncio.Event | None) -> int:
            async with bodies.read(request(1000, sent)) as raw:
                return len(raw)

        waiting = [asyncio.ensure_future(read(hold)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="try again later") as caught:
            await read(None)
        assert caught.value.status == 429
        hold.set()
        return [*await asyncio.gather(*waiting), await read(None)]

    assert asyncio.run(crowd()) == [1000] * (AT_ONCE + 1)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b'{"messages": [' + b"[]," * 5_000_000 + b"1]}",
    "numbers": lambda: b'{"messages": [' + b"1," * 7_000_000 + b"1]}",
    "strings": lambda: b'{"messages": [' + b'"",' * 5_000_000 + b"1]}",
    "keys": lambda: b"{" + b",".join(b'"%d":0' % n for n in range(1_000_000)) + b"}",
    "escapes": lambda: b'{"messages": "' + b'\\"' * 8_000_000 + b'"}',
    "open": lambda: b'{"messages": "' + b'\\"' * 8_000_000,
    "quotes": lambda: b'"' * 16_000_000,
    "one string": lambda: b'{"messages": "' + b"x" * 16_000_000 + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_costs_no_more_than_its_bytes_and_holds_nobody_up(pair: Pipeline, name: str) -> None:
    """Others are answered while it is looked at; lists alone once held the loop up for five seconds."""
    with tool.serving(pair, limits=ClientLimits()) as running:

        async def both() -> tuple[float, httpx.Response, float]:
            async with httpx.AsyncClient(base_url=running.url, verify=False, timeout=60) as http:
                headers = {"content-type": "application/json"}
                start = time.perf_counter()
                posting = asyncio.ensure_future(
                    http.post("/v1/chat/completions", content=HOSTILE[name](), headers=headers)
                )
                slowest = 0.0
                while not posting.done():
                    begin = time.perf_counter()
                    await asyncio.sleep(0.005)
                    slowest = max(slowest, time.perf_counter() - begin)  # this loop and the server's share one process
                return slowest, await posting, time.perf_counter() - start

        slowest, reply, seconds = asyncio.run(both())
    assert reply.status_code == 400
    assert len(reply.json()["error"]["message"]) <= 300
    assert slowest < 1.0
    assert seconds < 5


def test_values_are_counted_as_a_parser_would() -> None:
    check_shape(json.dumps({"a": ['x, y [ {"' * 1000, {"b": [1, 2, 3]}]}).encode())
    check_shape(b"[" + b"1," * (MOST_VALUES - 2) + b"1]")
    with pytest.raises(RequestError, match="values"):
        check_shape(b"[" + b"1," * (MOST_VALUES + 1) + b"1]")


def test_mutated_bodies_are_requests_or_get_a_4xx_and_one_short_line(pair: Pipeline) -> None:
    """Many more of them: `python tests/gguf/fuzz_inputs.py 20000 1 bodies`."""
    found, statuses = fuzz(400, 11, pair)
    assert not found.faults, str(found)
    assert statuses[200] > 20
    assert statuses[400] > 100
