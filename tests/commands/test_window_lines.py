"""What commands say of windows: before a run of a file, and on stderr where positions are extrapolated."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
from retriever_files import text_task

from sp.cli import main, warnings_as_lines
from sp.errors import SpWarning
from sp.models.synthetic.retriever import write_retriever


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that was made for 512 positions."""
    return write_retriever(tmp_path_factory.mktemp("short") / "short.gguf", "retriever-qwen3", seed=11, context=512)


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sp", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_inspect_and_plan_say_how_longer_prompts_are_read(
    short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "inspect", str(short), "--json") == 0
    line = json.loads(capsys.readouterr().out)["family"]["as_drafter"]
    assert line == "window 512 tokens; longer prompts are read with YaRN: x2 to 1,024, x4 to 2,048, ..."
    monkeypatch.setenv("COLUMNS", "200")
    assert called(monkeypatch, "inspect", str(short)) == 0
    assert f"as a drafter  {line}" in capsys.readouterr().out
    shapes = "--synthetic-target", "qwen3.6-27b", "--synthetic-drafter", "qwen3-0.6b"
    assert called(monkeypatch, "plan", *shapes, "-p", "128k") == 0
    assert "window 40,960 tokens; 130,816 are read with YaRN x4" in capsys.readouterr().out
    assert called(monkeypatch, "plan", *shapes, "-p", "32k", "--json") == 0
    assert json.loads(capsys.readouterr().out)["drafter"]["window"] == "window 40,960 tokens"
    assert called(monkeypatch, "plan", "--synthetic-target", "qwen3-0.6b", "-p", "64k") == 0
    assert "drafter  window 40,960 tokens; 65,280 are read with YaRN x2" in capsys.readouterr().out


def test_a_run_asked_to_extrapolate_warns_in_one_line(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = text_task(1500, needles=4, seed=4)
    (tmp_path / "text.txt").write_text(task.document)
    words = "run", "--drafter", str(short), "--prompt-file", str(tmp_path / "text.txt"), "--question", task.question
    words += "--keep-ratio", "0.3", "--compress", "always", "--no-full", "--max-new-tokens", "1", "--json"
    words += "--device", "cpu", "--out", str(tmp_path / "out")
    assert called(monkeypatch, *words) == 0
    found = capsys.readouterr()
    assert "warning" not in found.err
    assert json.loads(found.out)["positions"] == [
        "drafter: RoPE scaled by YaRN, 4 x 512 positions, as the prompt needs"
    ]
    assert called(monkeypatch, *words, "--drafter-rope", "none") == 0
    found = capsys.readouterr()
    (line,) = [line for line in found.err.splitlines() if "warning" in line]
    assert line.startswith("sp: warning: drafter short.gguf reads beyond its window of 512 tokens, extrapolated; omit")
    assert "extrapolated" in json.loads(found.out)["positions"][-1]


def test_warnings_of_others_are_shown_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    def warn() -> None:
        with warnings_as_lines():
            warnings.warn("mine", SpWarning, stacklevel=1)
            warnings.warn("theirs", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="theirs"):
        warn()
    assert capsys.readouterr().err == "sp: warning: mine\n"
