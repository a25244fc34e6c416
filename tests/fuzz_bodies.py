"""Mutations of request bodies, to every route that takes one: answered, or refused with a 4xx and one short line.

A share runs as `serve/test_serve_access.py`; many more with `gguf/fuzz_inputs.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fuzz_texts import changed_bytes, changed_json
from outcomes import Outcomes
from tool_templates import PARAMETERS

import sp
from sp.errors import SpError
from sp.gguf import ChatTemplate
from sp.prompt import Prompt
from sp.serve.app import Service
from sp.serve.http import Metrics
from sp.serve.options import Defaults
from sp.serve.worker import PipelineWorker
from sp.session import Pipeline, RunResult

FILL = "The grass is green. " * 150
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "description": "Looks."}}
STRICT = {"type": "function", "function": {**LOOK["function"], "strict": True}}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": f"{FILL}\n\nWhat is green?"}], "max_tokens": 9, "model": "x"},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b?"}]}], "temperature": 0.7, "top_p": 0.9,
     "top_k": 5, "min_p": 0.1, "seed": 3, "n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["x", "y"]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "tool_call_id": "c1", "content": "seen"}], "stream": True,
     "stream_options": {"include_usage": True}, "user": "me", "prompt_cache_key": "k"},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK], "tool_choice": "auto",
     "parallel_tool_calls": False},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK], "tool_choice": "required", "max_tokens": 2},
    {"messages": [{"role": "user", "content": "hi"}], "tools": [STRICT], "response_format": {"type": "json_object"}},
    {"messages": [{"role": "user", "content": "hi"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False},
     "sp": {"keep_ratio": 0.1, "scorer": "tail", "selector": "top_chunks", "compress":
     "always", "threshold": 3, "protect": "auto", "decode": "greedy", "session": True, "recall": "auto"}},
)  # fmt: skip
TEXTS: tuple[dict[str, Any], ...] = (
    {"prompt": f"{FILL}\n\nWhat?", "max_tokens": 3, "temperature": 1, "logprobs": 2, "stop": "x", "sp": {"alpha": 0.1}},
    {"prompt": "é", "echo": False, "best_of": 1, "logit_bias": {"7": -9}, "repeat_penalty": 2, "suffix": "", "n": 1},
)
ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
RESPONSES: tuple[dict[str, Any], ...] = (
    {"input": f"{FILL}\n\nWhat is green?", "max_output_tokens": 9, "instructions": "Be brief.", "stream": True,
     "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}, "verbosity": "low"}},
    {"input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
               {"role": "user", "content": "hi"},
               {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
               ITEM, {"type": "function_call_output", "call_id": "c1", "output": "seen"}],
     "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}, {"type": "web_search"}],
     "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False, "top_logprobs": 2,
     "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"], "store": False},
)  # fmt: skip
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}
LOOKS = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
MESSAGES: tuple[dict[str, Any], ...] = (
    {"model": "x", "max_tokens": 9, "system": "Be brief.", "messages": [
        {"role": "user", "content": f"{FILL}\n\nWhat is green?"}], "stream": True, "metadata": {"user_id": "me"}},
    {"max_tokens": 2, "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;\nBe brief."}],
     "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
                  {"role": "assistant", "content": [{"type": "thinking", "thinking": "b", "signature": "c"}, USE]},
                  {"role": "user", "content": [
                      {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [
                          {"type": "text", "text": "seen"},
                          {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]},
                      {"type": "document", "title": "d", "source": {"type": "text", "data": "e"}}]}],
     "tools": [LOOKS], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], "tools": [{**LOOKS, "strict": True}],
     "tool_choice": {"type": "tool", "name": "look"}, "temperature": 0.7, "top_p": 0.9, "top_k": 5,
     "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024}, "sp": {"marked": False}},
    {"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "Now."}],
     "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}},
)  # fmt: skip
SEEDS: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    (path, body)
    for path, bodies in {
        "/v1/chat/completions": CHATS,
        "/v1/completions": TEXTS,
        "/v1/responses": RESPONSES,
        "/v1/messages": MESSAGES,
        "/v1/messages/count_tokens": MESSAGES[1:3],
        "/tokenize": (
            {"content": "hi <|im_end|> é", "add_special": True, "parse_special": False, "with_pieces": True},
        ),
        "/detokenize": ({"tokens": [1, 2, 300]},),
    }.items()
    for body in bodies
)
BROKEN = re.compile(rb'"(?:type|code)": ?"(?:server_error|api_error|internal_error)"')
"""In a stream, which has a status of 200 already."""
MOST = 300  # characters of a message


class RefusedError(SpError):
    """A body was answered with a status of 400 to 499."""


class Short(Pipeline):
    """Reads a few sentences in place of any prompt, and says one or two tokens, by the request's grammar if any:
    what takes time here is the server.
    """

    def run(self, prompt: Prompt, options: Any, **given: Any) -> RunResult:
        few = replace(options, max_new_tokens=min(2, options.max_new_tokens))
        return super().run(Prompt.from_text(FILL[:400]), few, **given)


class Asking:
    """The server's application without a socket: one request after the other."""

    def __init__(self, service: Service, runner: asyncio.Runner) -> None:
        self._app, self._runner = service.app(), runner

    def post(self, path: str, raw: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        return self._runner.run(self._post(path, raw))

    async def _post(self, path: str, raw: bytes) -> tuple[int, bytes]:
        told: list[dict[str, Any]] = []
        sent = [{"type": "http.request", "body": raw}]

        async def receive() -> Any:
            if not sent:
                await asyncio.Event().wait()  # the client stays
            return sent.pop()

        async def send(message: Any) -> None:
            told.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
                 "raw_path": path.encode(), "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1),
                 "server": ("127.0.0.1", 8000)}  # fmt: skip
        await self._app(scope, receive, send)
        return told[0]["status"], b"".join(each["body"] for each in told[1:])


@contextmanager
def asking(pair: Pipeline) -> Iterator[Asking]:
    """To a server whose model calls tools."""
    pipeline = Short(replace(pair.target, template=ChatTemplate(PARAMETERS)), pair.drafter)
    service = Service(PipelineWorker(pipeline, Metrics(), 64, None), Defaults(max_new_tokens=64))
    service.worker.start()
    try:
        with asyncio.Runner() as runner:
            yield Asking(service, runner)
    finally:
        service.worker.stop()


def ask(to: Asking, path: str, raw: bytes, statuses: Counter[int]) -> None:
    """One request; what is refused is a `RefusedError`, what is worse an AssertionError."""
    status, told = to.post(path, raw)
    statuses[status] += 1
    if status == 200:
        assert not BROKEN.search(told), told[-MOST:]
        return
    assert 400 <= status < 500, (status, told[:MOST])
    message = json.loads(told)["error"]["message"]
    assert len(message) <= MOST, message
    raise RefusedError(message)


def fuzz(count: int, seed: int, pair: Pipeline) -> tuple[Outcomes, Counter[int]]:
    """So many mutations of valid bodies; what came of them, and statuses."""
    outcomes, statuses = Outcomes(), Counter[int]()
    with asking(pair) as to:
        for path, body in SEEDS:
            assert to.post(path, json.dumps(body).encode())[0] == 200, body
        for number in range(count):
            rng = random.Random(f"{seed}-{number}")
            path, body = SEEDS[number % len(SEEDS)]
            raw = changed_json(body, rng).encode("utf-8", "surrogatepass")
            raw = changed_bytes(raw, rng) if rng.random() < 0.1 else raw
            outcomes.meet(
                [lambda path=path, raw=raw: ask(to, path, raw, statuses)],
                lambda path=path, raw=raw: f"{path}: {raw[:1500]!r}",
            )
    return outcomes, statuses


def try_many(count: int, seed: int) -> Outcomes:
    """So many mutations, to the embedded pair."""
    return fuzz(count, seed, sp.load(device="cpu"))[0]
