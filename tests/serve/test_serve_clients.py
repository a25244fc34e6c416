"""The official clients of OpenAI, in Python and JavaScript, against a running server: what their users do with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import serving as tool
from test_serve_tools import TOOLS, scripted
from tool_templates import TAGGED

from sp.session import Pipeline

openai = pytest.importorskip("openai")

CLIENTS = Path(__file__).parents[1] / "clients"
WHO: Any = [{"role": "user", "content": "Who is there?"}]
CALLS = (
    'Let me look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "read_file", "arguments": {}}\n</tool_call>'
)
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fact", "story"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def agent(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(scripted(pair, TAGGED, CALLS), answer=256) as running:
        yield running


@pytest.mark.slow
def test_python(talking: tool.Running, agent: tool.Running) -> None:
    api = tool.client(talking)
    model = api.models.list().data[0].id
    assert api.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError, match="this server has"):
        api.models.retrieve("other")
    ask = api.chat.completions.create

    whole = ask(model=model, messages=WHO, max_tokens=8)
    assert whole._request_id.startswith("req-")
    named = ask(model=model, messages=WHO, max_tokens=8, extra_headers={"x-request-id": "mine.1"})
    assert named._request_id == "mine.1"
    chunks = list(ask(model=model, messages=WHO, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    turns = list(WHO)
    for turn in range(3):
        reply = ask(model=model, messages=turns, max_tokens=8)
        turns += [reply.choices[0].message, {"role": "user", "content": f"And then, {turn}?"}]
    assert reply.usage.prompt_tokens_details.cached_tokens > 0

    told = ask(model=model, messages=WHO, max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
    assert "".join(each.token for each in told.logprobs.content) == told.message.content
    drawn = {"temperature": 1.8, "top_p": 0.98, "seed": 7, "n": 2, "extra_body": {"min_p": 0.001, "top_k": 50}}
    first, again = (ask(model=model, messages=WHO, max_tokens=8, **drawn).choices for _ in range(2))
    assert [each.message.content for each in first] == [each.message.content for each in again]

    calls = tool.client(agent).chat.completions
    made = calls.create(model=model, messages=WHO, tools=list(TOOLS), max_tokens=200).choices[0]
    assert [json.loads(call.function.arguments) for call in made.message.tool_calls] == [{"path": "a.py"}, {}]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in made.message.tool_calls]
    assert calls.create(model=model, messages=[*WHO, made.message, *results], tools=list(TOOLS)).choices


def test_python_json(talking: tool.Running) -> None:
    pytest.importorskip("llguidance")
    format_ = {"type": "json_schema", "json_schema": {"name": "found", "strict": True, "schema": SCHEMA}}
    ask = tool.client(talking).chat.completions.create
    found = ask(model="any", messages=WHO, max_tokens=40, response_format=format_)
    value = json.loads(found.choices[0].message.content)
    assert list(value) == ["kind", "count"]
    assert value["kind"] in ("fact", "story")
    with pytest.raises(openai.BadRequestError, match="not supported"):
        ask(model="any", messages=WHO, response_format={**format_, "json_schema": {"schema": {"type": "foo"}}})


def test_javascript(talking: tool.Running, agent: tool.Running) -> None:
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / "openai").is_dir():
        pytest.skip("needs Node 20 or newer, and `npm ci` in tests/clients")
    grammar = "yes" if find_spec("llguidance") else "no"
    done = subprocess.run(
        [node, "client.mjs", talking.url, agent.url], cwd=CLIENTS, capture_output=True, text=True, timeout=120,
        env={**os.environ, "SP_GRAMMAR": grammar}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["question"] == "turn"
    assert found["turns"] == 7
    assert found["calls"] == [["read_file", {"path": "a.py"}], ["read_file", {}]]
    assert found["response"] == found["chat"]
    turn = ["message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert found["items"] == ["user", *turn, *turn]
    if grammar == "yes":
        assert list(found["json"]) == ["kind", "count"]
