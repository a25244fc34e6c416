"""`sp eval turns`: a table of eighty columns, rows on disk that are made once, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp import cli


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "eval", "turns", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def models(retriever_target: Path, retriever_drafter: Path) -> list[str]:
    """Small and quick; they are not asked to be right here."""
    return ["--target", str(retriever_target), "--drafter", str(retriever_drafter), "--device", "cpu"]


def test_rows_are_made_once_and_the_table_is_narrow(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    common = [*models, "-t", 1800, "--turns", 2, "-n", 1, "--keep-ratio", 0.5, "--layout", "plain", "--out", out]
    assert call(monkeypatch, *common, "--scorer", "recency", "--no-controls", "--json") == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    assert [line["way"] for line in lines if line["kind"] == "all"] == ["full", "prefix", "cold"]
    assert all(line["n"] == 2 and line["low"] <= line["accuracy"] <= line["high"] for line in lines[:1])
    assert len(out.read_text().splitlines()) == 6
    out.write_bytes(out.read_bytes()[:-9])  # as if it had been killed
    assert call(monkeypatch, *common, "--scorer", "recency,random", "--no-controls") == 0
    found = capsys.readouterr()
    assert "5 of 8 rows were" in found.err
    assert "transcripts of 1,800 tokens" in found.out
    assert "cold random" in found.out
    page = out.with_suffix(".report.html").read_text()
    assert "cold: random + top_chunks" in page
    assert page.count('class="forest"') > 1
    assert max(map(len, found.out.splitlines())) <= 80
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len({(row["example"], row["way"], row["scorer"]) for row in rows}) == 8
    assert call(monkeypatch, *common, "--scorer", "recency,random", "--no-controls", "--ways", "cold") == 0
    assert "4 of 4 rows were" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ways", "colt"], "unknown way 'colt'; did you mean 'cold'"),
        (["--ways", "cold,cold"], "a policy is named twice"),
        (["--layout", "plane"], "--layout is 'plane'; did you mean 'plain'"),
        (["--turns", "21"], "turns must be from 1 to 20"),
        (["-t", "1k", "--turns", "4"], "use more tokens, or fewer turns"),
        (["--out", "/dev/null/rows.jsonl"], "cannot write below /dev/null"),
        (["-n", "0"], "--n must be at least 1, not 0"),
        (["-t", "1800", "--turns", "2"], "use --layout plain"),
        (["-t", "1800", "--turns", "2", "--scorer", "lookahead"], "scorer lookahead cannot reuse keys"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    models: list[str],
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *models, *arguments) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert "Traceback" not in told


def test_the_task_is_run_by_name(
    models: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["-t", "turns[turns=2 layout=plain]", "-p", "1800", "-n", "1", "--scorer", "random", "--keep-ratio", "0.5"]
    monkeypatch.setattr("sys.argv", ["sp", "eval", "tasks", *models, *named, "--no-controls", "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    lines = json.loads(capsys.readouterr().out)["results"]
    assert {line["task"] for line in lines} == {"turns turns=2 layout=plain"}
