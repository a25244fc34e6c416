"""`sp eval`: tables with full prefill and controls, rows on disk, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp import cli
from sp.evals.tasks.needle import shared_ngrams


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "eval", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def models(retriever_target: Path, retriever_drafter: Path) -> list[str]:
    """Small and quick; they are not asked to be right here."""
    return ["--target", str(retriever_target), "--drafter", str(retriever_drafter), "--device", "cpu"]


def test_needle_prints_controls_and_writes_rows(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    common = [*models, "-p", 400, "-n", 1, "--keep-ratio", 0.4, "--out", out]
    assert call(monkeypatch, "needle", *common, "--depths", "0,1", "--no-shared-ngrams", 1, "--json") == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    assert [line["scorer"] for line in lines] == ["full", "auto", "random", "lexical", "head_tail", "oracle"]
    assert all(line["n"] == 2 and line["low"] <= line["accuracy"] <= line["high"] for line in lines)
    assert [line["against_oracle"] is None for line in lines] == [True] + [False] * 5
    assert lines[-1]["against_oracle"] == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 12
    assert not any(shared_ngrams(row["question_template"], row["needle_template"], "{key}", 1) for row in rows)
    assert call(monkeypatch, "needle", *common, "--mode", "multiquery", "--no-controls", "--wide") == 0
    shown = capsys.readouterr().out
    assert "needle_multiquery" in shown
    assert "evidence: share of examples" in shown
    assert "-oracle" not in shown
    assert len(out.read_text().splitlines()) == 14, "rows are appended"
    page = out.with_suffix(".report.html").read_text()
    assert "needle_multiquery" in page
    assert 'class="forest"' in page


def test_the_distance_to_an_oracle_is_shown(
    models: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [*models, "-p", 300, "-n", 1, "--keep-ratio", 0.4, "--no-controls"]
    scorers = "recency,leave_one_out[among=2 answer_tokens=2]"
    assert call(monkeypatch, "needle", *common, "--wide", "--scorer", scorers) == 0
    shown = capsys.readouterr().out
    heads, *lines = shown.splitlines()
    place = heads.index("-oracle")
    by_scorer = {line.split()[2]: line[place : place + len("-oracle")].strip() for line in lines[:3]}
    assert by_scorer.keys() == {"full", "recency", "leave_one_out"}
    assert by_scorer["full"] == "-"
    assert by_scorer["leave_one_out"] == "+0.00"
    assert by_scorer["recency"] in ("+0.00", "-1.00", "+1.00")
    assert "-oracle: difference in share of right answers" in " ".join(shown.split())


def test_ruler_and_its_files(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [*models, "-n", 1, "--keep-ratio", 0.5, "--no-controls", "--json"]
    assert call(monkeypatch, "ruler", *few, "-p", 900, "-t", "vt,fwe", "--no-shots") == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    assert [line["task"] for line in lines] == ["fwe", "fwe", "vt", "vt"]
    path = tmp_path / "niah_single_1" / "validation.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"input": f"{'A line. ' * 40}\nWhat is it?", "outputs": ["7"]}) + "\n")
    assert call(monkeypatch, "ruler", *few, "--file", path) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["task"] == "niah_single_1"


def test_tasks_by_name_with_options(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    few = [*models, "-n", 1, "--keep-ratio", 0.5, "--no-controls", "--json", "--out", out, "-p", 400]
    named = "needle[value=word filler=noise], needle[seed=2]"
    assert call(monkeypatch, "tasks", *few, "-t", named, "--scorer", "random", "--seed", 1) == 0
    lines = json.loads(capsys.readouterr().out)["results"]
    names = ["needle filler=noise value=word seed=1", "needle seed=2"]
    assert [line["task"] for line in lines[::2]] == [line["task"] for line in lines[1::2]] == names
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["task"] for row in rows[::2]] == names
    assert {len(row["models"][role]["sha256"]) for row in rows for role in ("target", "drafter")} == {64}
    assert rows[0]["filler"] == "noise"


def test_tasks_give_scorers_files_of_their_own(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = f"retrieval_heads[map={tmp_path}/heads-without-{{task}}.json]"
    assert (
        call(monkeypatch, "tasks", *models, "-t", "needle", "-p", 300, "-n", 1, "--keep-ratio", 0.5, "--scorer", scorer)
        == 2
    )
    assert "heads-without-needle.json" in capsys.readouterr().err


def test_the_list_of_tasks_is_the_registry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sp.evals import TASKS

    assert call(monkeypatch, "tasks", "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["tasks"]
    assert [(line["task"], line["suite"]) for line in listed] == [(name, TASKS.class_of(name).suite) for name in TASKS]
    assert all(line["description"].endswith((".", ")", "`")) for line in listed)
    assert call(monkeypatch, "tasks", "--list") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in TASKS)


def test_ppl(models: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = [*models, "-p", 200, "-n", 2, "--continuation", 4, "--keep-ratio", 0.5]
    assert call(monkeypatch, "ppl", *few) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown
    assert "the oracle has no evidence" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["needle", "--mode", "singel"], "did you mean 'single'"),
        (["needle", "--depths", "0..2/3"], "--depths takes numbers from 0 to 1"),
        (["needle", "--filler", "essays"], "task needle: filler is 'essays'"),
        (["needle", "--no-shared-ngrams", "-1"], "--no-shared-ngrams must be at least 0, not -1"),
        (["needle", "--scorer", "tail[querys=3]"], "did you mean 'queries'"),
        (["needle", "--scorer", "tail[queries]"], "options are NAME=VALUE"),
        (["needle", "--selector", "top_chunks]"], "--selector takes comma-separated names"),
        (["needle", "--keep-ratio", "0"], "keep_ratio must be above 0"),
        (["needle", "-p", "20"], "use longer prompts"),
        (["needle", "--drafter-rope", "linear"], "--drafter-rope takes none, linear:FACTOR"),
        (["needle", "--device", "gpu"], "--device is 'gpu'; did you mean 'cpu'"),
        (["needle", "--out", "/dev/null/rows.jsonl"], "cannot write below /dev/null"),
        (["needle", "--target", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["ruler", "-t", "niah_singel_1"], "did you mean 'niah_single_1'"),
        (["ruler", "--file", "/nowhere/x.jsonl"], "cannot read /nowhere/x.jsonl"),
        (["ppl", "--text", "/nowhere/book.txt"], "check the path given to --text"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert call(monkeypatch, *arguments, *device) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
