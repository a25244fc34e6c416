"""The pages on extending are followed to the letter: files put in place, code and commands run in order, then tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "extending"
QUESTION = "What is the special magic number for quiet-lantern?"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 12
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
DRIVER = """
import json, shlex, sys
from sp import cli

names, steps = {}, json.loads(sys.stdin.read())
if any("sp run" in text for _, text in steps):
    from sp.studies import figures

    figures.SHARPNESS = 0.25  # all is drawn, and a sixteenth is stored
for kind, text in steps:
    print(f"## {kind}", flush=True)
    if kind == "python":
        exec(text, names)
        continue
    for line in text.splitlines():
        sys.argv = shlex.split(line)
        try:
            cli.main()
        except SystemExit as stop:
            assert not stop.code, line
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to put files into."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "sp", folder / "sp", copy_function=os.symlink)  # compiled files come along
    return folder


def follow(page: str, checkout: Path, folder: Path) -> str:
    """Return what the commands of a page print. Blocks that begin with the name of a file are written before any runs.

    Documents are shorter than the embedded one and than the page says: they take longest, and change nothing here.
    """
    steps, tests = [], list[str]()
    (folder / "book.txt").write_text(f"{FILLER}The special magic number for quiet-lantern is 8301947. {FILLER}")
    shorter = f" --prompt-file book.txt --question '{QUESTION}'"
    for kind, text in BLOCK.findall((PAGES / page).read_text()):
        if named := re.match(r"# (\S+\.(?:py|yaml))\n", text):
            path = (checkout if named[1].startswith("sp/") else folder) / named[1]
            path.unlink(missing_ok=True)  # a link to a file of the package, where somebody followed the page there
            path.write_text(re.sub(r"(?<=tokens: )\d+", "768", text) if named[1].endswith(".yaml") else text)
        elif kind == "bash":
            tests += text.splitlines()
        elif kind != "toml":
            assert kind in ("python", "console"), f"{page}: a block of {kind} that is no file"
            text = re.sub(r"^sp run .*", lambda line: line[0] + shorter, text, flags=re.M)
            text = re.sub(r"(?<=-p )\d+", "256", text)
            steps.append((kind, re.sub(r"(?<=example\(0, )\d+", "512", text)))
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (checkout, folder)))}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(steps),
        cwd=folder,
        env=os.environ | paths | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("## ") == len(steps) > 0
    assert tests, f"{page} ends with a command that tests the new thing"
    for line in tests:
        run_tests(line, folder, os.environ | paths)
    return done.stdout


def run_tests(line: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a line of pytest as a page has it, plugins in a folder; tests must pass, within the minute it promises."""
    words = shlex.split(line.replace("--plugin ", f"--plugin {folder}/"))
    assert words[0] == "pytest"
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *words[1:]]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}"
    assert " passed" in done.stdout
    assert time.monotonic() - start < 60, line


@pytest.mark.slow
def test_a_scorer(checkout: Path, tmp_path: Path) -> None:
    output = follow("scorer.md", checkout, tmp_path)
    assert "sharpest_head queries=16" in output
    trace = json.loads((tmp_path / "sharpest" / "trace.json").read_text())
    assert trace["options"]["scorer"].startswith("SharpestHeadScorer(")
    assert "queries=16" in trace["options"]["scorer"]
    rows = dict(re.findall(r"^(\S+) [01] ([\d.]+)$", output, re.M))
    assert set(rows) == {"full", "tail", "question_echo", "random", "oracle"}
    assert float(rows["question_echo"]) > float(rows["random"])
    assert json.loads((tmp_path / "norms" / "trace.json").read_text())["options"]["scorer"].startswith("ValueNorm(")


@pytest.mark.slow
def test_a_selector(checkout: Path, tmp_path: Path) -> None:
    output = follow("selector.md", checkout, tmp_path)
    assert "best_token neighbours=0 sink=4" in output
    trace = json.loads((tmp_path / "best" / "trace.json").read_text())
    assert trace["options"]["selector"].startswith("BestToken(")
    assert "chunk_size=16" in trace["options"]["selector"]


@pytest.mark.slow
def test_a_task(checkout: Path, tmp_path: Path) -> None:
    output = follow("task.md", checkout, tmp_path)
    [rows] = (tmp_path / "sp-sweep" / "lost_key").glob("*.jsonl")
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    correct = {line["scorer"]: line["correct"] for line in lines if line["kind"] == "row"}
    assert set(correct) == {"full", "tail", "random", "oracle"}
    assert correct["full"] == correct["oracle"] == 1
    assert "lost_key" in output.split("## console")[-1]
