"""Streams that live while nothing is said: headers at once, comments, progress; refusals that are statuses still."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serving as tool
import web

from sp.errors import TooLongError
from sp.gguf import Tokenizer
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.prompt import Prompt
from sp.serve.fields import RequestError
from sp.serve.http import ClientLimits
from sp.serve.precheck import PART, SAMPLE, SAMPLES, check_length
from sp.serve.text import CompletionStream, Piece, ReplyText
from sp.serve.worker import Sessions, Ticket
from sp.session import Pipeline, RunOptions

openai = pytest.importorskip("openai")

HELLO: dict[str, Any] = {"model": "x", "messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"model": "x", "prompt": "Who is there?", "max_tokens": 4},
    "/v1/responses": {"model": "x", "input": "Who is there?", "max_output_tokens": 4},
    "/v1/messages": HELLO,
}
LONG = "7 " * 90_000  # tokens enough for the window of the embedded pair
CUT_SECONDS = 0.5


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Prompts are read once it is set."""
    opened, answer = threading.Event(), Sessions.answer

    def waits(self: Sessions, prompt: Prompt, job: Any, apart: Any, reporter: Any, on_token: Any) -> Any:
        with reporter("scoring", 400) as progress:
            progress(200)
            while not opened.wait(0.02):
                progress(0)
        return answer(self, prompt, job, apart, reporter, on_token)

    monkeypatch.setattr(Sessions, "answer", waits)
    yield opened
    opened.set()


@contextmanager
def proxy(port: int) -> Iterator[str]:
    """What passes bytes on and cuts connections on which the server says nothing for `CUT_SECONDS`."""
    loop, made = asyncio.new_event_loop(), list[asyncio.Server]()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float | None) -> None:
        try:
            while data := await asyncio.wait_for(reader.read(1 << 16), seconds):
                writer.write(data)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed(reader, to, None), passed(there, writer, CUT_SECONDS))

    made.append(loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made[0].sockets[0].getsockname()[1]}"
    finally:
        made[0].close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def opened(gate: threading.Event, seconds: float) -> None:
    threading.Timer(seconds, gate.set).start()


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_begins_at_once_and_a_proxy_leaves_it(pair: Pipeline, gate: threading.Event, path: str) -> None:
    opened(gate, 2 * CUT_SECONDS)
    with tool.serving(pair, limits=ClientLimits(silent_seconds=0.2)) as server, proxy(server.port) as url:
        start, lines, times = time.monotonic(), list[str](), list[float]()
        with web.stream("POST", url + path, json=BODIES[path] | {"stream": True}) as reply:
            assert reply.status_code == 200
            assert time.monotonic() - start < CUT_SECONDS
            for line in reply.iter_lines():
                lines += [line] if line else []
                times.append(time.monotonic() - start)
    assert times[0] < 0.5
    assert lines.index("event: ping" if path == "/v1/messages" else ": reading") <= 4
    assert sum(line in ("event: ping", ": reading") for line in lines) > 3
    last = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}.get(path, "[DONE]")
    assert last in lines[-1]


def test_a_proxy_cuts_a_stream_that_is_silent(pair: Pipeline, gate: threading.Event) -> None:
    opened(gate, 2 * CUT_SECONDS)
    with (
        tool.serving(pair, limits=ClientLimits(silent_seconds=60)) as server,
        proxy(server.port) as url,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        web.post(f"{url}/v1/chat/completions", json=HELLO | {"stream": True})


@contextmanager
def busy(server: tool.Running) -> Iterator[None]:
    """Somebody else's request is at work until the gate is opened."""
    asked = threading.Thread(target=lambda: web.post(f"{server.url}/v1/chat/completions", json=HELLO))
    asked.start()
    tool.until(lambda: server.worker.state["running"] == 1)
    yield
    asked.join()


def test_what_waits_is_refused_with_a_status(
    server: tool.Running, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies that are wrong, prompts that are too long, what a template cannot show; also behind another request."""
    # A machine under load may take longer to count tokens. The stream would begin, and wait for the gate without end.
    monkeypatch.setattr("sp.serve.streams.ACCEPT_SECONDS", 60)
    off = {"sp": {"compress": "off"}}
    wrong = [
        ("/v1/chat/completions", HELLO | {"max_tokens": "x"}, "max_tokens"),
        ("/v1/chat/completions", HELLO | {"messages": [{"role": "user", "content": LONG}]} | off, "context of 163840"),
        ("/v1/completions", {"prompt": LONG} | off, "context of 163840"),
        ("/v1/responses", {"input": LONG} | off, "context of 163840"),
        ("/v1/messages", HELLO | {"messages": [{"role": "user", "content": LONG}]} | off, "prompt is too long"),
        ("/v1/chat/completions", HELLO | {"chat_template_kwargs": {"mood": 1}}, "does not read"),
    ]
    with busy(server):
        for path, body, said in wrong:
            reply = web.post(server.url + path, json=body | {"stream": True})
            assert (reply.status_code, "event-stream" in reply.headers["content-type"]) == (400, False), path
            assert said in reply.json()["error"]["message"]
        gate.set()


def test_what_waits_and_is_short_enough_is_accepted(server: tool.Running, gate: threading.Event) -> None:
    long = HELLO | {"messages": [{"role": "user", "content": "7 " * 60_000}], "max_tokens": 100_000, "stream": True}
    with busy(server), web.stream("POST", f"{server.url}/v1/chat/completions", json=long) as reply:
        assert reply.status_code == 200  # with a shorter answer
        gate.set()
    del reply


FAILS: list[tuple[str, Callable[[dict[str, Any]], Any], Any]] = [
    ("/v1/chat/completions", lambda e: e["error"]["message"], "the prompt"),
    ("/v1/responses", lambda e: e["response"]["error"]["code"], "context_length_exceeded"),
    ("/v1/messages", lambda e: (e["type"], e["error"]["message"]), ("error", "prompt is too long: the prompt")),
]


@pytest.mark.parametrize(("path", "read", "said"), FAILS)
def test_what_is_found_too_late_is_the_last_event(
    server: tool.Running, monkeypatch: pytest.MonkeyPatch, path: str, read: Callable[[Any], Any], said: Any
) -> None:
    def fails(*_: Any) -> None:
        time.sleep(0.5)
        raise TooLongError("the prompt")

    monkeypatch.setattr(Sessions, "answer", fails)
    reply = web.post(server.url + path, json=BODIES[path] | {"stream": True})
    assert reply.status_code == 200
    assert read(json.loads(reply.text.strip().rpartition("data: ")[2])) == said


def test_openai_raises_what_comes_in_a_stream(server: tool.Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        time.sleep(0.5)
        raise RequestError("there is no device", status=503)

    monkeypatch.setattr(Sessions, "answer", fails)
    with pytest.raises(openai.APIError, match="there is no device"):
        list(tool.client(server).chat.completions.create(**HELLO, stream=True))


PROGRESS = {"sp": {"progress": True}}


def test_progress_is_told_on_request(server: tool.Running) -> None:
    body = HELLO | {"stream": True, "sp": {"compress": "always", "progress": True}}
    text = tool.document("quiet-lantern", 7, 30)
    body |= {"messages": [{"role": "user", "content": f"{text}\n\nWhat?"}]}
    lines = web.post(f"{server.url}/v1/chat/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [chunk["sp"]["progress"] for chunk in chunks if "sp" in chunk]
    assert all(chunk["choices"] == [] for chunk in chunks if "sp" in chunk)
    usage = web.post(f"{server.url}/v1/chat/completions", json=body | {"stream": False}).json()["usage"]
    (drafted, kept), stages = (usage["sp"][name] for name in ("drafted", "kept")), ("scoring", "target prefill")
    ends = {stage: [each for each in told if each["stage"] == stage] for stage in stages}
    for stage, tokens in zip(stages, (drafted, kept), strict=True):
        assert ends[stage][0] == {"stage": stage, "tokens": 0, "total": tokens}
        assert ends[stage][-1] == {"stage": stage, "tokens": tokens, "total": tokens}
    chunks = web.post(f"{server.url}/v1/chat/completions", json=HELLO | {"stream": True}).text
    assert '"sp"' not in chunks


def test_progress_comes_while_a_stage_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = SimpleNamespace(stream=True, overrides=SimpleNamespace(progress=True))
    heard = list[Any]()
    clock = iter([0.0, 0.1, 0.3, 0.35, 0.9])
    monkeypatch.setattr("sp.serve.worker.time.perf_counter", lambda: next(clock))
    ticket = Ticket(job, heard.append, submitted=0.0, layers=2)
    with ticket.reporter("scoring", 80) as progress:
        for _ in range(4):
            progress(20)
    assert [(each.tokens, each.total) for each in heard] == [(0, 40), (20, 40), (40, 40)]


def test_openai_reads_streams_with_progress(server: tool.Running, gate: threading.Event) -> None:
    opened(gate, 0.6)
    api = tool.client(server)
    chunks = list(api.chat.completions.create(**HELLO, stream=True, extra_body=PROGRESS))
    assert chunks[0].sp["progress"] == {"stage": "scoring", "tokens": 0, "total": 80}
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == api.chat.completions.create(**HELLO).choices[0].message.content
    asked: dict[str, Any] = {"model": "x", "input": "Who is there?", "max_output_tokens": 4}
    with api.responses.stream(**asked, extra_body=PROGRESS) as stream:
        kinds = [each.type for each in stream]
        assert stream.get_final_response().output_text == api.responses.create(**asked).output_text
    assert kinds[:2] == ["response.created", "response.in_progress"]


def test_anthropic_reads_streams_with_progress(server: tool.Running, gate: threading.Event) -> None:
    anthropic = pytest.importorskip("anthropic")
    opened(gate, 0.6)
    api = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with api.messages.stream(**HELLO, extra_body=PROGRESS) as stream:
        said = stream.get_final_message()
    assert said.content[0].text == api.messages.create(**HELLO).content[0].text
    body = BODIES["/v1/messages"] | PROGRESS | {"stream": True}
    assert '"sp.progress", "progress": {"stage"' in web.post(f"{server.url}/v1/messages", json=body).text


def test_a_client_that_leaves_ends_a_long_reading(server: tool.Running, gate: threading.Event) -> None:
    before = server.worker.metrics.requests.labels("cancelled")._value.get()
    with web.stream("POST", f"{server.url}/v1/chat/completions", json=HELLO | {"stream": True}) as reply:
        next(reply.iter_lines())
    tool.until(lambda: server.worker.metrics.requests.labels("cancelled")._value.get() == before + 1)
    assert not gate.is_set()


BYTES = Tokenizer.from_metadata(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*map(chr, byte_alphabet()), "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 256,
    }
)


def spoken(text: bytes) -> list[Piece]:
    """Pieces of an answer, a token for each byte, with log probabilities."""
    heard = list[Any]()
    speaker = CompletionStream(BYTES, ReplyText(BYTES), heard.append, logprobs=0)
    ids = {BYTES.token_bytes(i): i for i in range(256)}
    for byte in text:
        choice: Any = SimpleNamespace(token=ids[bytes([byte])], logprob=-1.0, tokens=EMPTY, logprobs=EMPTY)
        speaker._chosen.append(choice)
        speaker.push(choice.token)
    speaker.end(len(text), 99)
    return [each for each in heard if isinstance(each, Piece)]


EMPTY = SimpleNamespace(tolist=list)


def test_offsets_of_characters_that_several_tokens_share() -> None:
    """By hand: each token stands where its character does."""
    pieces = spoken("aé😀b".encode())
    assert "".join(each.text for each in pieces) == "aé😀b"
    assert [token.start for each in pieces for token in each.logprobs] == [0, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize("left", [1, 2, 3])
def test_no_half_character_ends_an_answer(left: int) -> None:
    pieces = spoken("é😀".encode()[:-left])
    assert "".join(each.text for each in pieces) == "é"
    assert len([token for each in pieces for token in each.logprobs]) == 6 - left
    assert "".join(each.text for each in spoken(b"a\xffb")) == "a\ufffdb"


def test_a_text_that_is_much_too_long_is_not_tokenised_whole(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, encode = list[int](), Tokenizer.encode

    def counts(self: Tokenizer, text: str, *rest: Any, **more: Any) -> Any:
        seen.append(len(text))
        return encode(self, text, *rest, **more)

    monkeypatch.setattr(Tokenizer, "encode", counts)
    small = replace(pair.target.model.config, context=4096)
    target: Any = SimpleNamespace(**vars(pair.target) | {"model": SimpleNamespace(config=small, device="cpu")})
    short: Any = SimpleNamespace(target=target, drafter=pair.drafter)
    whole, off = RunOptions(keep_ratio=0.5), RunOptions(compress="off")
    text = "It rained. " * 50_000
    for options, most in ((whole, 8192), (off, 4096)):
        seen.clear()
        with pytest.raises(TooLongError, match=f"reads at most {most} with these options; shorten"):
            check_length(short, Prompt(text), options)
        assert sum(seen) <= 3 * PART + SAMPLES * SAMPLE < len(text) / 2
    seen.clear()
    check_length(short, Prompt(text[:4000]), off)
    assert not seen, "the length alone says that it fits"
    check_length(short, Prompt("<|im_end|>" * 3900), off)  # which are one token each
    seen.clear()
    check_length(short, Prompt("<|im_end|>" * 3900 + "7 " * 100), off)
    assert sum(seen) <= (SAMPLES + 1) * SAMPLE, "what samples say fits is left to be tokenised once"
