"""`--thinking` and `--reasoning-effort`: passed on, told apart in reports, and one line where they mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sp import cli
from sp.models.synthetic import retriever

THINKS = (
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retriever whose template opens thinking, and closes it where it is off."""
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    with pytest.MonkeyPatch.context() as patch:
        marked = retriever.TEMPLATE.replace("assistant\n", f"assistant\n{THINKS}")
        patch.setattr(retriever, "TEMPLATE", marked)
        return retriever.write_retriever(path, "retriever-qwen3", "q8_0", seed=11, code_dim=48)


@pytest.fixture
def run(thinker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls `sp run --json` on the thinker, and gives the report."""
    path = tmp_path / "text.txt"
    path.write_text("The sky is blue. " * 20 + "BLUE is the answer. " + "The grass is green. " * 20)
    common = ["--target", thinker, "--drafter", thinker, "--prompt-file", path, "--question", "What is blue"]

    def called(*options: object) -> tuple[dict[str, Any], str]:
        common_out = [
            "--out",
            tmp_path / "out",
            "--max-new-tokens",
            8,
            "--device",
            "cpu",
            "--compress",
            "off",
            "--json",
        ]
        assert call(monkeypatch, "run", *common, *common_out, *options) == 0
        shown = capsys.readouterr()
        return json.loads(shown.out), shown.err

    return called


def test_run_tells_thinking_from_the_answer(run: Any) -> None:
    thought, told = run()
    assert thought["reasoning"]
    assert thought["answer"] == ""
    assert not told
    said, told = run("--thinking", "off")
    assert said["reasoning"] == said["full_reasoning"] == ""
    assert said["answer"]
    assert not told
    _, told = run("--reasoning-effort", "high")
    assert told == "sp: thinker.gguf: the chat template reads no reasoning_effort, so high has no effect\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["run", "--thinking", "maybe"], "--thinking is 'maybe'"),
        (["run", "--reasoning-effort", "very high"], "one word"),
        (["serve", "--thinking", "yes"], "--thinking is 'yes'"),
        (["eval", "needle", "--thinking", "yes"], "--thinking is 'yes'"),
        (["eval", "ppl", "--thinking", "on"], "reads plain text"),
    ],
)
def test_bad_options_end_in_one_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *options) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_an_answer_prefix_and_thinking_exclude_each_other(
    thinker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--target", thinker, "--drafter", thinker, "--device", "cpu", "--out", tmp_path / "out"]
    assert call(monkeypatch, "run", *models, "--answer-prefix", " It") == 2
    assert "add --thinking off" in capsys.readouterr().err


def test_eval_is_off_unless_it_is_asked_for(
    thinker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    common = ["--target", thinker, "--drafter", thinker, "--device", "cpu", "-p", 500, "-n", 1, "--no-controls"]
    few = [*common, "--keep-ratio", 0.6, "--json", "--out", out]
    assert call(monkeypatch, "eval", "needle", *few) == 0
    monkeypatch.setattr("sp.evals.run.THINKING_TOKENS", 8)
    assert call(monkeypatch, "eval", "needle", *few, "--thinking", "on") == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("thinking") for row in rows] == [None, None, "on", "on"]
    assert "knows of no" not in capsys.readouterr().err
