"""What a front passes on between clients and a server whose replies are odd, broken, late or none at all."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from fronting import Behind, before
from serving import until
from test_front_history import story

from sp.front.rules import Rules
from sp.front.shorten import Compressor

CHAT = "/v1/chat/completions"
ASKS = {"messages": [{"role": "user", "content": f"{story(1, 120)}\n\nWhich room has the violin?"}]}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n"


@dataclass
class Wire:
    """A server that answers each connection's first request with some bytes, waits, and resets the connection."""

    reply: bytes = b""
    wait: float = 0.0
    requests: list[bytes] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """Set as soon as the other side closes while the server waits."""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                request = self._read(connection)
                if not request:
                    continue  # a probe
                self.requests.append(request)
                connection.sendall(self.reply)
                connection.settimeout(self.wait or 0.001)
                try:
                    if not connection.recv(1):
                        self.left.set()
                except TimeoutError:
                    pass
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        raw = b""
        while b"\r\n\r\n" not in raw:
            if not (piece := connection.recv(1 << 16)):
                return b""
            raw += piece
        head, _, body = raw.partition(b"\r\n\r\n")
        size = next((int(each[15:]) for each in head.split(b"\r\n") if each.lower().startswith(b"content-length:")), 0)
        while len(body) < size:
            body += connection.recv(1 << 16)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = Wire()
    yield server
    server.close()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, timeout=20, trust_env=False) as client:
        yield client


def test_no_client_gets_the_cookies_of_another(behind: Behind, words: Compressor) -> None:
    behind.extra = {"Set-Cookie": "session=one"}
    with before(behind.url, words) as (url, _):
        for _ in range(2):
            reply = httpx.post(url + CHAT, json=ASKS, trust_env=False)
            assert reply.headers["set-cookie"] == "session=one"
            assert "cookie" not in behind.got[-1][2]


def test_no_header_is_added_and_those_for_the_front_stay_there(behind: Behind, words: Compressor) -> None:
    with before(behind.url, words) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        for more in ("", "x-sp-keep-ratio: 0.5\r\nConnection: X-Hop\r\nX-Hop: 1\r\nExpect: 100-continue\r\n"):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
                assert raw.recv(1 << 16)
            assert set(behind.got[-1][2]) == {"host"}


@pytest.mark.parametrize("target", ["http://other.example/v1/models", ".other.example/", "%2Fother", "*"])
def test_a_path_cannot_lead_to_another_host(behind: Behind, words: Compressor, target: str) -> None:
    with before(behind.url, words) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert raw.recv(1 << 16).split(b" ")[1] in (b"400", b"404")
    assert not behind.got


ODD_TARGETS = ["/v1/a%2Fb//c?x=%20&y=[1]|2", "/v1/../secret", "/v1/models?"]


@pytest.mark.parametrize("target", ODD_TARGETS)
def test_a_path_passes_as_it_was_spelled(behind: Behind, words: Compressor, target: str) -> None:
    with before(behind.url, words) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            raw.recv(1 << 16)
    assert behind.got[-1][1] == target.rstrip("?")


def test_a_body_changes_only_where_texts_are_shortened(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    text = json.dumps(ASKS["messages"][0]["content"])
    raw = '{ "seed":1e400,"n":1.00000000000000000001,\n"n":2, "sp":{"threshold":0} ,"stop":"\\u00e4\\ud800/",' \
          f'"messages":[{{"role":"user","content":{text},"x":[]}}]}}'  # fmt: skip
    behind.reply = b'{"usage": {"prompt_tokens":7,"x":1e400 , "a":1,"a":2},"text":"\\ud800"}'
    with before(behind.url, words) as (url, _):
        reply = client.post(url + CHAT, content=raw.encode())
        sent = behind.got[-1][3].decode()
        head, tail = raw.replace('"sp":{"threshold":0} ,', "").split(text)
        assert sent.startswith(head)
        assert sent.endswith(tail)
        assert len(sent) < len(raw) / 2
        before_end, after = behind.reply.split(b'"a":2')
        assert reply.content.startswith(before_end)
        assert reply.content.endswith(after)
        assert reply.json()["usage"]["sp"]["shortened"] == 1


@pytest.mark.parametrize(
    "rest", [{"n": 1}, {"tools": [{"name": "x"}], "messages": [{"role": "user", "content": "Hi"}]}]
)
def test_sp_is_taken_out_of_bodies_that_stay(behind: Behind, words: Compressor, client: httpx.Client, rest) -> None:
    with before(behind.url, words) as (url, _):
        for options in ({"off": True}, {}):
            client.post(url + CHAT, json={"sp": options, **rest})
            assert behind.body == rest


def test_half_a_surrogate_pair_passes(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    text = story(2, 120)
    messages = [
        {"role": "user", "content": "\ud800" + text},
        {"role": "assistant", "content": "So?"},
        {"role": "user", "content": f"{text}\n\nWhich room has the violin?"},
    ]
    with before(behind.url, words) as (url, _):
        assert client.post(url + CHAT, content=json.dumps({"messages": messages})).status_code == 200
    assert behind.body["messages"][:2] == messages[:2]
    assert len(behind.body["messages"][2]["content"]) < len(text) / 2


UNREADABLE = [
    (gzip.compress(json.dumps(ASKS).encode()), {"content-encoding": "gzip"}, "encoded with gzip"),
    (json.dumps(ASKS).encode("utf-16"), {}, "no JSON object"),
    (b"[" * 100_000, {}, "no JSON object"),
    (b'{"messages": "\xff"}', {}, "no JSON object"),
    (b'{"n": ' + b"9" * 5000 + b"}", {}, "no JSON object"),
    (b"[1]", {}, "no JSON object"),
]


@pytest.mark.parametrize(("body", "headers", "reason"), UNREADABLE)
def test_what_cannot_be_read_passes_and_a_header_says_why(behind, words, client, body, headers, reason) -> None:
    with before(behind.url, words) as (url, _):
        reply = client.post(url + CHAT, content=body, headers=headers)
        assert reply.status_code == 200
        assert behind.got[-1][3] == body
        assert reason in reply.headers["x-sp-reason"]


def test_chunked_bodies_are_shortened_too(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    raw = json.dumps(ASKS).encode()
    with before(behind.url, words) as (url, _):
        client.post(url + CHAT, content=iter([raw[:100], raw[100:]]))
        assert len(behind.got[-1][3]) < len(raw) / 2


def test_a_compressed_reply_passes_as_it_is(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    behind.reply, text = gzip.compress(behind.reply), behind.reply
    behind.extra = {"Content-Encoding": "gzip"}
    with before(behind.url, words) as (url, _):
        reply = client.post(url + CHAT, json=ASKS)
        assert reply.content == text
        assert reply.headers["x-sp-shortened"] == "1"


def test_the_id_and_the_date_of_a_reply_stand_once(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    behind.extra = {"X-Request-Id": "req_abc"}
    with before(behind.url, words) as (url, _):
        reply = client.post(url + CHAT, json=ASKS)
        assert reply.headers.get_list("x-request-id") == ["req_abc"]
        assert len(reply.headers.get_list("date")) == 1


@pytest.mark.parametrize("status", [401, 429, 500])
def test_errors_pass_with_their_headers(behind: Behind, words: Compressor, client: httpx.Client, status: int) -> None:
    behind.status, behind.extra, behind.reply = status, {"Retry-After": "7"}, b'{"error": {"message": "no"}}'
    with before(behind.url, words) as (url, _):
        reply = client.post(url + CHAT, json=ASKS)
        assert (reply.status_code, reply.content) == (status, behind.reply)
        assert reply.headers["retry-after"] == "7"


BROKEN = [b"", b"garbage\r\n\r\n", HEAD + b"Content-Length: 99\r\n\r\n{"]


@pytest.mark.parametrize("reply", BROKEN)
def test_a_broken_reply_is_a_line_and_nothing_is_sent_twice(wire, words, client, reply, caplog) -> None:
    wire.reply = reply
    with before(wire.url, words) as (url, _):
        answer = client.post(url + CHAT, json=ASKS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert "sent once" in answer.json()["error"]["message"]
    assert len(wire.requests) == 1
    assert not caplog.records


def test_a_stream_that_breaks_off_does_not_look_complete(wire, words, client, caplog) -> None:
    wire.reply = EVENTS
    with before(wire.url, words) as (url, _):
        with client.stream("POST", url + CHAT, json=ASKS) as reply:
            assert reply.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                reply.read()
        assert client.get(url + "/metrics").status_code == 200
    assert "broke off" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("reply", [b"", EVENTS, HEAD + b"Content-Length: 99\r\n\r\n{"])
@pytest.mark.parametrize("body", [ASKS, {"messages": []}])
def test_a_client_that_leaves_ends_the_work_behind(wire, words, reply, body) -> None:
    wire.reply, wire.wait = reply, 10.0
    with before(wire.url, words) as (url, _):
        with httpx.Client(timeout=0.5, trust_env=False) as client, pytest.raises(httpx.ReadTimeout):
            client.post(url + CHAT, json=body)
        assert wire.left.wait(3)


def test_nothing_behind_is_said_before_the_drafter_is_done(words, client, monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with before(url, words) as (front_url, front):
        monkeypatch.setattr(front.history, "shorten", lambda *_: time.sleep(3))
        start = time.perf_counter()
        reply = client.post(front_url + CHAT, json=ASKS)
        assert time.perf_counter() - start < 2
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_unreachable")


def test_short_requests_do_not_wait_for_long_ones(behind: Behind, words: Compressor, monkeypatch) -> None:
    with before(behind.url, words) as (url, front):
        begun, done = threading.Event(), threading.Event()

        def shorten(*_):
            begun.set()
            done.wait(10)
            raise ValueError("not this time")

        monkeypatch.setattr(front.history, "shorten", shorten)
        thread = threading.Thread(target=httpx.post, args=[url + CHAT], kwargs={"json": ASKS, "trust_env": False})
        thread.start()
        assert begun.wait(5)
        short = httpx.post(url + CHAT, json={"messages": [{"role": "user", "content": "Hi"}]}, trust_env=False)
        assert "bytes of text" in short.headers["x-sp-reason"]
        done.set()
        thread.join()


def test_usage_is_counted_of_all_replies(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    def counted(front) -> tuple[float, float]:
        return tuple(front.metrics.tokens.labels(f"upstream_{kind}")._value.get() for kind in ("prompt", "cached"))

    def reaches(front, prompt: float, cached: float) -> None:
        until(
            lambda: counted(front) == (prompt, cached)
        )  # a reply is counted once it has ended, after the client saw it

    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4}}}
    delta = {"type": "content_block_delta", "delta": {"text": "x" * 5000}}
    ends = {"type": "message_delta", "usage": {"output_tokens": 3}}
    finished = {"type": "response.completed", "response": {"output": "x" * 200_000, "usage": {"input_tokens": 11}}}
    with before(behind.url, words) as (url, front):
        client.post(url + CHAT, json={"messages": [{"role": "user", "content": "Hi"}]})
        reaches(front, 7, 0)
        behind.media = "text/event-stream"
        for line_end in ("\n\n", "\r\n\r\n"):
            at_first = counted(front)
            behind.reply = "".join(
                f"data: {json.dumps(each)}{line_end}" for each in [start, *[delta] * 40, ends]
            ).encode()
            client.post(url + "/v1/messages", json=ASKS)
            reaches(front, at_first[0] + 9, at_first[1] + 4)
        at_first = counted(front)
        behind.reply = f"data: {json.dumps(finished)}\n\n".encode()
        client.post(url + "/v1/responses", json={"input": "Hi"})
        reaches(front, at_first[0] + 11, at_first[1])


def test_a_request_sent_again_is_written_the_same(behind: Behind, words: Compressor, client: httpx.Client) -> None:
    facts = ["The password of the archive is vermilion.", "The archive has another password."]
    text = "\n".join(story(seed, 60, fact) for seed, fact in enumerate(facts))
    asks = {"messages": [{"role": "user", "content": f"{text}\n\nWhat is the password of the archive?"}]}
    with before(behind.url, words, Rules(keep_ratio=0.05, threshold=256)) as (url, _):
        for _ in range(3):
            client.post(url + CHAT, json=asks)
    assert len({got[3] for got in behind.got}) == 1


def test_keys_are_not_logged(behind: Behind, words: Compressor, client: httpx.Client, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    with before(behind.url, words) as (url, front):
        front.history.compressor, compressor = None, front.history.compressor  # type: ignore[assignment]
        headers = {"Authorization": "Bearer sk-secret", "x-api-key": "sk-secret"}
        client.post(f"{url}{CHAT}?key=sk-secret", json=ASKS, headers=headers)  # fails within
        front.history.compressor = compressor
        page = client.get(url).text + client.get(f"{url}/metrics").text
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert own
    assert "sk-secret" not in "".join(record.getMessage() + str(record.exc_text) for record in own) + page
    assert behind.body == ASKS
