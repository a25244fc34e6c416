"""The pages on extending are done as they say: their files in place, their code and their commands run, in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "extending"
QUESTION = "What is the special magic number for quiet-lantern?"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 12
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
DRIVER = """
import json, shlex, sys
from sp import cli

names = {}
for kind, text in json.loads(sys.stdin.read()):
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
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to put files into."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "sp", folder / "sp", copy_function=os.symlink)  # what is compiled comes along
    return folder


def carry_out(page: str, house: Path, folder: Path) -> str:
    """What the blocks of a page print; those that begin with the name of a file are put there before anything runs.

    Documents are shorter than the embedded one and than the page says: they take longest, and change nothing here.
    """
    steps = []
    (folder / "book.txt").write_text(f"{FILLER}The special magic number for quiet-lantern is 8301947. {FILLER}")
    shorter = f" --prompt-file book.txt --question '{QUESTION}'"
    for kind, text in BLOCK.findall((PAGES / page).read_text()):
        if named := re.match(r"# (\S+\.(?:py|yaml))\n", text):
            place = (house if named[1].startswith("sp/") else folder) / named[1]
            assert not place.exists(), f"{place} is part of the house already"
            place.write_text(re.sub(r"(?<=tokens: )\d+", "768", text) if named[1].endswith(".yaml") else text)
        elif kind != "toml":
            assert kind in ("python", "console"), f"{page}: a block of {kind} that is no file"
            text = re.sub(r"^sp run .*", lambda line: line[0] + shorter, text, flags=re.M)
            text = re.sub(r"(?<=-p )\d+", "256", text)
            steps.append((kind, re.sub(r"(?<=example\(0, )\d+", "512", text)))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(steps),
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, (house, folder))), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("## ") == len(steps) > 0
    return done.stdout


@pytest.mark.slow
def test_a_scorer(house: Path, tmp_path: Path) -> None:
    shown = carry_out("scorer.md", house, tmp_path)
    assert "sharpest_head queries=16" in shown
    trace = json.loads((tmp_path / "sharpest" / "trace.json").read_text())
    assert trace["options"]["scorer"].startswith("SharpestHeadScorer(")
    assert "queries=16" in trace["options"]["scorer"]
    rows = dict(re.findall(r"^(\S+) [01] ([\d.]+)$", shown, re.M))
    assert set(rows) == {"full", "tail", "question_echo", "random", "oracle"}
    assert float(rows["question_echo"]) > float(rows["random"])


@pytest.mark.slow
def test_a_selector(house: Path, tmp_path: Path) -> None:
    shown = carry_out("selector.md", house, tmp_path)
    assert "best_token neighbours=0 sink=4" in shown
    trace = json.loads((tmp_path / "best" / "trace.json").read_text())
    assert trace["options"]["selector"].startswith("BestToken(")
    assert "chunk_size=16" in trace["options"]["selector"]


@pytest.mark.slow
def test_a_task(house: Path, tmp_path: Path) -> None:
    shown = carry_out("task.md", house, tmp_path)
    [rows] = (tmp_path / "sp-sweep" / "lost_key").glob("*.jsonl")
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    found = {line["scorer"]: line["correct"] for line in lines if line["kind"] == "row"}
    assert set(found) == {"full", "tail", "random", "oracle"}
    assert found["full"] == found["oracle"] == 1
    assert "lost_key" in shown.split("## console")[-1]
