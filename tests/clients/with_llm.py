"""Simon Willison's `llm`, the library and its command, against a running server: python with_llm.py URL AGENT, in a
folder of its own, where `AGENT` is the URL of one that calls a tool.

Prints one JSON object: what each part found. Anything unexpected ends it with a traceback and status 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["LLM_USER_PATH"] = str(Path.cwd())

import llm
from click.testing import CliRunner
from llm.cli import cli
from shared import SCHEMA, weather


def main(url: str, agent: str) -> dict[str, Any]:
    able = {"model_name": "target", "supports_tools": True, "supports_schema": True}
    models = [
        {"model_id": "plain", "api_base": f"{url}/v1", **able},
        {"model_id": "items", "api_base": f"{url}/v1", "responses": True, **able},
        {"model_id": "calls", "api_base": f"{agent}/v1", **able},
        {"model_id": "calls-items", "api_base": f"{agent}/v1", "responses": True, **able},
    ]
    Path("extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    plain = llm.get_model("plain")
    whole = plain.prompt("Who is there?", stream=False, max_tokens=8)
    streamed = plain.prompt("Who is there?", max_tokens=8)
    assert "".join(streamed) == whole.text()
    assert (streamed.usage().input, streamed.usage().output) == (whole.usage().input, whole.usage().output)
    assert llm.get_model("items").prompt("Who is there?", max_tokens=8).text() == whole.text()

    talk = plain.conversation()
    for turn in range(3):
        reply = talk.prompt(f"And then, {turn}?", max_tokens=8)
        reply.text()
    assert reply.usage().details["prompt_tokens_details"]["cached_tokens"] > 0
    held = plain.prompt("Which?", schema=SCHEMA, max_tokens=40).text()

    tools = {}
    for name in ("calls", "calls-items"):
        chain = (
            llm.get_model(name)
            .conversation(tools=[weather])
            .chain("What is the weather in Oslo?", options={"max_tokens": 200})
        )
        tools[name] = [each.text() for each in chain.responses()]

    command = ["-m", "plain", "-o", "max_tokens", "8"]
    first, second = (run([*command, *more]) for more in (["Who is there?", "-u"], ["-c", "And now?"]))
    assert first.stdout.strip() == whole.text().strip()
    assert "Token usage:" in first.stderr, first.stderr
    assert second.stdout.strip()
    listed = run(["logs", "-n", "2", "--json"])
    assert len({each["conversation_id"] for each in json.loads(listed.stdout)}) == 1
    return {"turns": len(talk.responses), "json": json.loads(held), **tools}


def run(command: list[str]) -> Any:
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
