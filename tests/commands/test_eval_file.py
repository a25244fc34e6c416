"""`sp eval file`: own questions from the shell, every mistake told before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from retriever_files import text_task

from sp import cli


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "eval", "file", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Questions that the constructed retrievers answer."""
    made = [text_task(500, needles=4, seed=seed) for seed in range(2)]
    lines = []
    for number, one in enumerate(made):
        start = one.document.index(one.needle)
        evidence = [[start, start + len(one.needle)]] if number else one.needle
        fields = {"context": one.document, "question": one.question, "answers": one.answer, "evidence": evidence}
        lines.append(json.dumps(fields))
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_own_questions(
    mine: Path,
    retriever_target: Path,
    retriever_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"]
    other = tmp_path / "other.jsonl"
    other.write_text(mine.read_text().splitlines()[0])
    out = tmp_path / "rows.jsonl"
    few = ["--keep-ratio", 0.3, "--metric", "f1", "--no-controls", "--max-new-tokens", 6, "--json", "--out", out]
    assert call(monkeypatch, mine, other, *models, *few) == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    assert [(line["task"], line["scorer"], line["n"]) for line in lines] == [
        ("mine", "full", 2), ("mine", "auto", 2), ("other", "full", 1), ("other", "auto", 1),
    ]  # fmt: skip
    assert all(line["score"] == 1 for line in lines if line["scorer"] == "full")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["metric"] for row in rows} == {"f1"}
    assert all(row["given_kept"] is not None and 0 <= row["depth"] <= 1 for row in rows)
    assert call(monkeypatch, mine, *models, *few, "-n", 1, "--scorer", "oracle") == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    assert [(line["scorer"], line["n"], line["accuracy"]) for line in lines] == [("full", 1, 1), ("oracle", 1, 1)]


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ('{"context": "a", "question": "b"}', ["--format", "own"], "mine.jsonl, line 3: answers must be a text"),
        ("{", [], "mine.jsonl, line 3: not a JSON object"),
        (None, ["--metric", "F1"], "unknown metric 'F1'; did you mean 'f1'"),
        (None, ["--format", "longbench"], "unknown format 'longbench'; did you mean 'longbench_v2'"),
        (None, ["--format", "ruler"], "line 1: needs `input` (text)"),
        (None, ["--format", "mrcr", "--metric", "f1"], "format mrcr has a metric of its own"),
        (None, ["--format", "nolima"], "pass one with --set haystack=book.txt"),
        (None, ["--set", "depth=0.5"], "unknown option of format own 'depth'"),
        (None, ["--set", "haystack"], "options are NAME=VALUE"),
        (None, ["{mine}"], "two files are called 'mine'"),
        (None, ["/nowhere/x.jsonl"], "cannot read /nowhere/x.jsonl: No such file"),
        (None, ["-n", "0"], "--n must be at least 1, not 0"),
    ],
)
def test_mistakes_are_told_before_models_are_loaded(
    mine: Path,
    line: str | None,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if line is not None:
        mine.write_text(f"{mine.read_text()}\n{line}\n")
    asked = [one.replace("{mine}", str(mine)) for one in options]
    assert call(monkeypatch, mine, *asked, "--target", "/nowhere/model.gguf", "--device", "cpu") == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("first", [False, True])
def test_all_lines_are_checked_and_the_first_damaged_ones_are_named(
    mine: Path, first: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ["{", '{"context": "a", "question": "b"}', "[]", '{"context": "", "question": "b", "answers": "c"}']
    good = mine.read_text().splitlines()
    lines = [*bad, *good] if first else [good[0], *bad, good[1]]
    mine.write_text("\n".join(lines))
    assert call(monkeypatch, mine, "--target", "/nowhere/model.gguf", "--device", "cpu") == 2
    told = capsys.readouterr().err
    at = 1 if first else 2
    assert f"{mine}: 4 of 6 records are damaged: line {at}: not a JSON object" in told
    assert f"; line {at + 1}: answers must be a text or a list of 1 to 32 of them; line {at + 2}: " in told
    assert told.endswith("; ...\n")
    assert told.count("\n") == 1
    assert len(told) < 300 + len(str(mine))


def test_prompts_that_are_too_long_are_passed_over_and_told(
    mine: Path,
    tmp_path: Path,
    retriever_target: Path,
    retriever_drafter: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "long.jsonl"
    long = json.dumps({"context": "word " * 40_000, "question": "b?", "answers": "c"})
    path.write_text(f"{long}\n{mine.read_text().splitlines()[0]}\n")
    few = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu", "--keep-ratio", 0.4]
    assert call(monkeypatch, path, *few, "--no-controls", "--max-new-tokens", 6) == 0
    shown = capsys.readouterr()
    assert "1 (+1 not run)" in shown.out
    assert "a prompt of a file exceeds the target's context" in shown.out
    assert call(monkeypatch, path, *few, "--no-controls", "-p", 20, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"results": []}
    assert shown.err == "sp: 2 of 2 prompts of long have more than 20 tokens and were skipped\n"
