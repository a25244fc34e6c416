"""Programs that many ask a local server with, against a running one: LiteLLM, LangChain, `llm` and Codex.

They bring environments of their own (see docs/server.md): `SP_CLIENTS_PYTHON` names the Python of one that has
`.ci/clients.txt`, `SP_CODEX` the `codex` of `npm ci --prefix tests/clients/codex`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving as tool
from test_serve_agents import CALL, RAIN, Looking
from test_serve_clients import CLIENTS
from test_serve_tools import scripted
from tool_templates import TAGGED

from sp.session import Pipeline

ROOT = Path(__file__).parents[2]
PYTHON, CODEX = (given and Path(given).absolute() for given in map(os.environ.get, ("SP_CLIENTS_PYTHON", "SP_CODEX")))
SAID = ["I look.", RAIN]
OFF = ("apps", "goals", "multi_agent", "plugins", "skill_search")  # what makes Codex's prompt five times as long


class Reading(Looking):
    """Has Codex print a file, and then says what is in it."""

    calls = 'I look.\n<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "cat note.txt"}}\n</tool_call>'
    result, tells = "", "It says hello."


def serving(pair: Pipeline, kind: type[Looking]) -> Iterator[tool.Running]:
    made = scripted(pair, TAGGED, CALL)
    with tool.serving(kind(made.target, made.drafter), answer=256) as running:
        yield running


@pytest.fixture(scope="module")
def looking(pair: Pipeline) -> Iterator[tool.Running]:
    yield from serving(pair, Looking)


@pytest.fixture(scope="module")
def reading(pair: Pipeline) -> Iterator[tool.Running]:
    yield from serving(pair, Reading)


@pytest.mark.skipif(not PYTHON, reason="SP_CLIENTS_PYTHON names no Python with .ci/clients.txt")
@pytest.mark.parametrize(
    ("script", "turns", "spoken"),
    [
        ("litellm", 7, ("openai", "anthropic")),
        ("langchain", 7, ("chat", "responses")),
        ("llm", 3, ("calls", "calls-items")),
    ],
)
def test_a_script_of_several_turns(
    talking: tool.Running, looking: tool.Running, tmp_path: Path, script: str, turns: int, spoken: tuple[str, ...]
) -> None:
    command = [str(PYTHON), str(CLIENTS / f"with_{script}.py"), talking.url, looking.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["turns"] == turns
    assert list(found["json"]) == ["kind", "count"]
    assert [found[each] for each in spoken] == [SAID, SAID]


@pytest.mark.skipif(not CODEX, reason="SP_CODEX names no codex")
def test_codex_runs_a_command_and_goes_on(reading: tool.Running, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello\n")
    (tmp_path / "brief.md").write_text("Be brief.\n")
    provider = f'{{name = "sp", base_url = "{reading.url}/v1", wire_api = "responses"}}'
    settings = ['model="target"', 'model_provider="sp"', f"model_providers.sp={provider}", 'web_search="disabled"']
    settings += [f'model_instructions_file="{tmp_path}/brief.md"', *(f"features.{each}=false" for each in OFF)]

    def events(*command: str) -> list[dict[str, Any]]:
        given = [part for each in settings for part in ("-c", each)]
        done = subprocess.run(
            [str(CODEX), "exec", *command, "--skip-git-repo-check", "--json", *given],
            cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "CODEX_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines()]

    # No sandbox: the command is the one above, and few containers let another be made inside them.
    first = events("--sandbox", "danger-full-access", "What is in note.txt?")
    items = [each["item"] for each in first if each["type"] == "item.completed"]
    (ran,) = (each for each in items if each["type"] == "command_execution")
    assert (ran["aggregated_output"], ran["exit_code"]) == ("hello\n", 0)
    assert [each["text"] for each in items if each["type"] == "agent_message"] == ["I look.", Reading.tells]
    second = events("resume", "--last", "And now?")
    assert [each.get("item", {}).get("text") for each in second].count(Reading.tells) == 1
    assert first[0]["thread_id"] == second[0]["thread_id"]
    used = [each[-1]["usage"]["input_tokens"] for each in (first, second)]
    assert 0 < used[0] < used[1]


def test_the_table_of_clients_names_the_versions_that_are_tried() -> None:
    """Of `openai` and others that the tests' own environment has, `pyproject.toml` pins none."""
    pinned = [line.split("==") for line in (ROOT / ".ci" / "clients.txt").read_text().splitlines() if line[0] != "#"]
    for folder in (CLIENTS, CLIENTS / "codex"):
        pinned += json.loads((folder / "package.json").read_text())["dependencies"].items()
    rows = [line.split("|")[1:3] for line in (ROOT / "docs" / "server.md").read_text().splitlines() if line[:1] == "|"]
    assert len(pinned) == 6
    for name, version in pinned:
        assert any(f"`{name}`" in client and told.strip() == version for client, told in rows), name
