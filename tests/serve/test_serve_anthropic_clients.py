"""The official clients of Anthropic, in Python and JavaScript, against a running server: what their users do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import serving as tool
from test_serve_anthropic import TOOLS
from test_serve_clients import CALLS, CLIENTS, SCHEMA
from test_serve_tools import scripted
from tool_templates import TAGGED

from sp.session import Pipeline

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from pages import blocks

WHO: Any = [{"role": "user", "content": "Who is there?"}]


@pytest.fixture(scope="module")
def agent(pair: Pipeline) -> Iterator[tool.Running]:
    with tool.serving(scripted(pair, TAGGED, CALLS), answer=256) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def anthropic() -> Any:
    """The package, which takes seconds to import: not before its tests begin, which most processes never run."""
    return pytest.importorskip("anthropic")


def client(server: tool.Running) -> Any:
    anthropic = import_module("anthropic")
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


@pytest.mark.slow
def test_python(anthropic: Any, talking: tool.Running, agent: tool.Running) -> None:
    (model,) = client(talking).models.list()
    assert client(talking).models.retrieve(model.id).display_name == model.id == "target"
    api = client(talking).messages
    whole = api.create(model="any", messages=WHO, max_tokens=8, system="Be brief.")
    (block,) = whole.content
    with api.stream(model="any", messages=WHO, max_tokens=8, system="Be brief.") as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == block.text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    tokens = api.count_tokens(model="any", messages=WHO, system="Be brief.").input_tokens
    for usage in (whole.usage, final.usage):
        assert tokens == usage.input_tokens + usage.cache_read_input_tokens

    turns = list(WHO)
    for turn in range(3):
        reply = api.create(model="any", messages=turns, max_tokens=8)
        turns += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": f"And then, {turn}?"}]
    assert reply.usage.cache_read_input_tokens > 0
    assert reply.usage.sp["session"] == "hit"

    with pytest.raises(anthropic.BadRequestError, match="max_tokens is -1"):
        api.create(model="any", messages=WHO, max_tokens=-1)
    with pytest.raises(anthropic.NotFoundError):
        client(talking).get("/v1/messages/batches", cast_to=object)


@pytest.mark.slow
def test_python_calls_tools(agent: tool.Running) -> None:
    api = client(agent).messages
    made = api.create(model="any", messages=WHO, tools=TOOLS, max_tokens=200)
    assert made.stop_reason == "tool_use"
    with api.stream(model="any", messages=WHO, tools=TOOLS, max_tokens=200) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert kinds.count("content_block_stop") == 3
    calls = [[block.input for block in message.content if block.type == "tool_use"] for message in (made, streamed)]
    assert calls == [[{"path": "a.py"}, {}]] * 2
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "seen"}
        for block in made.content
        if block.type == "tool_use"
    ]
    turns = [*WHO, {"role": "assistant", "content": made.content}, {"role": "user", "content": results}]
    assert api.create(model="any", messages=turns, tools=TOOLS, max_tokens=9).stop_reason == "max_tokens"


def test_the_example_of_the_page_runs(talking: tool.Running, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (each.text for each in blocks("python") if "anthropic.Anthropic(" in each.text)
    exec(code.replace("http://127.0.0.1:8000", talking.url), {"document": "The grass is green. " * 40})
    assert re.search(r"\n\d+ \d+ 1\n", capsys.readouterr().out)


@pytest.mark.slow
def test_python_json(talking: tool.Running) -> None:
    pytest.importorskip("llguidance")
    format_ = {"format": {"type": "json_schema", "schema": SCHEMA}}
    found = client(talking).messages.create(
        model="any", messages=WHO, max_tokens=40, extra_body={"output_config": format_}
    )
    assert list(json.loads(found.content[0].text)) == ["kind", "count"]


def test_javascript(talking: tool.Running, agent: tool.Running) -> None:
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / "@anthropic-ai" / "sdk").is_dir():
        pytest.skip("needs Node 20 or newer, and `npm ci` in tests/clients")
    done = subprocess.run(
        [node, "anthropic.mjs", talking.url, agent.url], cwd=CLIENTS, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["turns"] == 7
    assert found["cached"] > 0
    assert found["calls"] == [["read_file", {"path": "a.py"}], ["read_file", {}]]
