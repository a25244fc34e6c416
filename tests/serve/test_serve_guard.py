"""Whom the server answers: hosts, keys; connections that say nothing, and too many of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import resource
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
import serving as tool
import web

from sp.errors import ConfigError
from sp.serve import connections
from sp.serve.connections import LoopErrors
from sp.serve.guard import Guard, hosts_of, key_of
from sp.session import Pipeline

KEY = "secret-of-the-test"
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def guarded(pair: Pipeline) -> Any:
    guard = Guard(hosts_of(["box.lan"], "127.0.0.1", loopback=True), KEY)
    with tool.serving(pair, guard=guard, cors=("http://localhost:3000",)) as running:
        yield running


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/v1/messages"])
def test_a_name_that_was_made_to_point_here_is_refused(guarded: tool.Running, path: str) -> None:
    for host in ("evil.example", f"evil.example:{guarded.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        reply = web.request("GET", guarded.url + path, headers={"Host": host, "x-api-key": KEY})
        assert reply.status_code == 403
        assert "start it with --allow-host" in reply.json()["error"]["message"]
        assert reply.headers["x-request-id"], "it is logged"
    assert ("type" in reply.json()) == (path == "/v1/messages"), "in the shape that clients of the path read"


@pytest.mark.parametrize(
    "host", ["localhost:1", "app.localhost", "127.0.0.1:80", "[::1]:8000", "192.168.1.5", "BOX.lan."]
)
def test_names_of_this_machine_are_answered(guarded: tool.Running, host: str) -> None:
    assert web.get(f"{guarded.url}/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["[", "", "a b", "[::1", "\x7f", "@", "x" * 300])
def test_hosts_that_are_none_break_nothing(host: str) -> None:
    assert not Guard().answers_to(host)
    assert Guard(("*",)).answers_to(host)


def test_without_the_key_only_the_page_and_health_are_answered(guarded: tool.Running) -> None:
    url = f"{guarded.url}/v1/chat/completions"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"x-api-key": KEY + "x"}):
        reply = web.post(url, json=HELLO, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/metrics", "/props", "/none"):
            assert web.get(guarded.url + path, headers=headers).status_code == 401
    assert web.post(f"{guarded.url}/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
    assert [web.get(guarded.url + path).status_code for path in ("/", "/health")] == [200, 200]
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert web.post(url, json=HELLO, headers=headers).status_code == 200


def test_a_browser_asks_without_the_key_what_it_may_send(guarded: tool.Running) -> None:
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization"}  # fmt: skip
    url = f"{guarded.url}/v1/chat/completions"
    assert web.options(url, headers=asked).status_code == 200
    refused = web.post(url, json=HELLO, headers=asked)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, asked["Origin"])


@pytest.mark.parametrize("key", ["", "short", "with space", "é" * 9, "x" * 513, "a\nb-cdefghi"])
def test_keys_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(ConfigError, match="8 to 512 characters"):
        key_of(key)


@pytest.mark.parametrize("name", ["", "http://a", "a:80", "a b", "a/b", "é"])
def test_names_that_are_no_hosts(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--allow-host is '.*'; give a name"):
        hosts_of([name], "127.0.0.1", loopback=True)


def test_slow_headers_end_and_slow_answers_do_not(server: tool.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    half = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    silent, slow, again = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))
    start = time.monotonic()
    slow.sendall(half)
    again.sendall(half + b"\r\n")
    assert b"200 OK" in again.recv(4096)
    again.sendall(half)
    for each in (silent, slow, again):
        each.settimeout(5)
        while each.recv(4096):
            pass
        each.close()
    assert 0.2 < time.monotonic() - start < 2
    with socket.create_connection(("127.0.0.1", server.port)) as body:
        body.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 17\r\n\r\n")  # fmt: skip
        time.sleep(0.5)
        body.sendall(b'{"content": "hi"}')
        assert b"200 OK" in body.recv(4096)


def test_no_descriptors_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    loop, heard = asyncio.new_event_loop(), list[Any]()
    troubles = LoopErrors()
    full = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "Too many open files"),
    }
    loop.default_exception_handler = heard.append  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        for _ in range(5000):
            troubles(loop, full)
        troubles(loop, {"message": "other", "exception": ValueError()})
    loop.close()
    assert [record.getMessage() for record in caplog.records] == [
        "no more connections (Too many open files); close some, or raise the limit (ulimit -n)"
    ]
    assert len(heard) == 1


def test_a_server_that_others_reach_has_a_key_and_outlives_a_flood() -> None:
    """One process for both: descriptors run out, which is a line, and then it answers again."""
    command = (sys.executable, "-m", "sp", "serve", "--device", "cpu", "--port", "0", "--host", "0.0.0.0")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with subprocess.Popen((*command, "--no-access-log"), stderr=subprocess.PIPE, text=True, preexec_fn=few) as process:
        assert process.stderr is not None
        made, ready = process.stderr.readline(), process.stderr.readline()
        key = re.fullmatch(r"sp: API key (\S{32}) \(--api-key .*/#key=\1\n", made)
        port = re.search(r":(\d+)/v1", ready)
        assert key, made
        assert port, ready
        held = [socket.create_connection(("127.0.0.1", int(port[1]))) for _ in range(120)]
        time.sleep(0.5)
        for each in held:
            each.close()
        url = f"http://127.0.0.1:{port[1]}/v1/models"
        assert web.get(url).status_code == 401
        assert web.get(url, headers={"x-api-key": key[1]}).status_code == 200
        process.terminate()
        told = process.stderr.read()
    assert told.startswith("no more connections")
    assert told.count("no more connections") == 1
    assert told.count("\n") <= 2, told  # that a request may take some time to end, if the last one just does
