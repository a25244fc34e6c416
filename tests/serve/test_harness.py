"""lm-evaluation-harness asks `sp serve` a task of ours; what it reports is held to what the server answers.

It runs where `SP_LM_EVAL` names the harness's `lm_eval`, which brings its own environment (see docs/harness.md).
"""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import serving as tool
import web
import yaml

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "experiments" / "lm_eval"
AMOUNT = 4
HARNESS = os.environ.get("SP_LM_EVAL")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of `sp serve` with the embedded pair, which picks its port itself."""
    command = [sys.executable, "-m", "sp.cli", "serve", "--port", "0", "--device", "cpu", "--max-new-tokens", "32"]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log, text=True, env=ENVIRONMENT)
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        at = re.search(r"http://127\.0\.0\.1:\d+/v1", told)
        assert at, told
        yield at[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def prompts(folder: Path, amount: int) -> list[dict[str, Any]]:
    """What the script writes for the task."""
    out = folder / "sp_needle.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make_sp_needle.py", str(out), "--n", str(amount)])
        run_path(str(TASKS / "make_sp_needle.py"), run_name="__main__")
    return [json.loads(line) for line in out.read_text().splitlines()]


def ask(url: str, record: dict[str, Any]) -> dict[str, Any]:
    """The request of the task for a record, as its YAML and the harness have it."""
    sent = yaml.safe_load((TASKS / "sp_needle.yaml").read_text())["generation_kwargs"]
    body = {
        "messages": [{"role": "user", "content": f"{record['document']}\n\n{record['question']}"}],
        "model": "target",
        "max_tokens": sent["max_gen_toks"],
        "temperature": sent["temperature"],
        "stop": sent["until"],
        "seed": 1234,
        "sp": sent["sp"],
    }
    reply = web.post(f"{url}/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def right(said: str, answer: str) -> bool:
    """The harness's exact match without punctuation."""
    table = str.maketrans("", "", string.punctuation)
    return said.translate(table) == answer.translate(table)


def test_the_request_of_the_task_compresses_and_is_answered(tmp_path: Path, server: tool.Running) -> None:
    """Without the harness: the very fields it sends, so that the task cannot rot where it is not installed."""
    (record,) = prompts(tmp_path, 1)
    reply = ask(f"{server.url}/v1", record)
    facts = reply["usage"]["sp"]
    assert facts["compressed"]
    assert facts["kept_tokens"] <= 0.2 * reply["usage"]["prompt_tokens"] + 1
    assert right(reply["choices"][0]["message"]["content"], record["answer"])


@pytest.mark.skipif(not HARNESS, reason="SP_LM_EVAL names no lm_eval")
def test_the_harness_reports_what_the_server_answers(tmp_path: Path) -> None:
    made = prompts(tmp_path, AMOUNT + 1)
    with served(tmp_path) as url:
        arguments = {
            "--model": "local-chat-completions",
            "--model_args": f"model=target,base_url={url}/chat/completions,num_concurrent=1,max_retries=1",
            "--tasks": "sp_needle",
            "--include_path": str(TASKS),
            "--limit": str(AMOUNT),
            "--output_path": str(tmp_path / "out"),
        }
        command = [str(HARNESS), *(part for pair in arguments.items() for part in pair)]
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        command += ["--apply_chat_template", "--log_samples"]
        done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        answers = [ask(url, record)["choices"][0]["message"]["content"] for record in made[:AMOUNT]]
        counted = web.get(f"{url.removesuffix('/v1')}/metrics").text
    (results,) = (tmp_path / "out").rglob("results_*.json")
    (samples,) = (tmp_path / "out").rglob("samples_sp_needle_*.jsonl")
    score = json.loads(results.read_text())["results"]["sp_needle"]["exact_match,none"]
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    assert [row["doc"]["id"] for row in rows] == [record["id"] for record in made[:AMOUNT]]
    assert [row["resps"][0][0] for row in rows] == answers
    found = [right(said, record["answer"]) for said, record in zip(answers, made, strict=False)]
    assert score == pytest.approx(sum(found) / AMOUNT)
    assert any(found), answers
    assert f'sp_requests_total{{outcome="ok"}} {2 * AMOUNT}.0' in counted
