"""`sp eval natural` on a small set of one's own: a table, rows that are made once, a line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sp import cli
from sp.session import Pipeline


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "eval", "natural", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Two questions about a long document, of which one has two places, and one about a short one."""
    lines = [
        f"The lamp of room {number} burns with {number % 7 + 3} candles, say the porters.\n" for number in range(99)
    ]
    lines[20] = "A cat called Ossian guards the cellar.\n"
    lines[70] = "Ossian is fed at noon.\n"
    (tmp_path / "house.txt").write_text("".join(lines))
    (tmp_path / "note.txt").write_text("Keys hang behind the door. " * 40 + "Milk is in the larder.\n")
    records = [
        {"document": "house.txt", "question": "Who guards the cellar?", "answers": "Ossian", "evidence": [lines[20]]},
        {
            "document": "house.txt",
            "question": "When does the animal downstairs eat?",
            "answers": ["noon"],
            "evidence": [lines[20], lines[70].strip()],
        },
        {"document": "note.txt", "question": "Where is the milk?", "answers": "larder", "evidence": ["Milk is in"]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


def results(text: str) -> dict[tuple[str, float, str], dict[str, Any]]:
    found = json.loads(text)
    return {(line["scorer"], line["keep_ratio"], line["overlap"]): line for line in found["results"]}


def test_rows_are_made_once_and_say_why_evidence_is_lost(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    common = ["--questions", mine, "--device", "cpu", "--keep-ratio", "0.3,0.12", "--out", out]
    assert call(monkeypatch, *common, "--scorer", "recency", "--json") == 0
    told = capsys.readouterr().out
    lines = results(told)
    assert {scorer for scorer, *_ in lines} == {"recency", "bm25", "random", "lexical", "head_tail", "oracle"}
    assert lines["oracle", 0.3, "all"]["whole"] == 1
    assert lines["bm25", 0.3, "easy"]["whole"] >= lines["recency", 0.3, "easy"]["whole"]
    assert {lines["bm25", 0.3, name]["n"] for name in ("hard", "easy", "all")} == {1, 2, 3}
    rows = json.loads(told)["rows"]
    assert len(rows) == len(out.read_text().splitlines()) == 3 * 6 * 2
    for row in rows:
        assert row["whole"] == (row["reason"] is None)
        assert row["status"] == "ok" or row["reason"] == "budget"
        if row["status"] == "ok":
            assert row["kept_tokens"] <= row["keep_ratio"] * row["prompt_tokens"] + 40  # question and markup
            assert len(row["places"]) == row["needed_places"]
    out.write_bytes(out.read_bytes()[:-9])  # as if it had been killed
    assert call(monkeypatch, *common, "--scorer", "recency,uniform") == 0
    found = capsys.readouterr()
    assert "35 of 42 rows were" in found.err
    assert "uniform" in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    assert "uniform + top_chunks" in out.with_suffix(".report.html").read_text()
    assert call(monkeypatch, *common, "--scorer", "recency,uniform", "--json") == 0
    assert "42 of 42 rows were" in capsys.readouterr().err
    mine.write_text(mine.read_text().replace("larder", "pantry"))  # another answer: only its rows are made again
    assert call(monkeypatch, *common, "--scorer", "recency", "--no-controls", "--json") == 0
    assert "4 of 6 rows were" in capsys.readouterr().err


def test_a_scorer_reads_once_for_all_keep_ratios(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    score = Pipeline.score

    def counted(self: Pipeline, tokenised: Any, options: Any, *others: Any, **named: Any) -> Any:
        read.append((type(options.scorer).__name__, len(tokenised)))
        return score(self, tokenised, options, *others, **named)

    monkeypatch.setattr(Pipeline, "score", counted)
    common = ["--questions", mine, "--device", "cpu", "--keep-ratio", "0.2,0.4,0.3", "--no-controls", "--json"]
    assert call(monkeypatch, *common, "--scorer", "tail,snapkv", "--max-tokens", "600") == 0
    assert sorted(name for name, _ in read) == ["SnapKVScorer", "TailScorer"]


def test_the_target_answers_if_asked(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--questions", mine, "--device", "cpu", "--keep-ratio", "0.3", "--no-controls", "--scorer", "oracle"]
    assert call(monkeypatch, *common, "--answers", "--json", "--max-tokens", "600") == 0
    found = capsys.readouterr()
    assert "2 of 3 questions are about longer documents" in found.err
    lines = results(found.out)
    assert lines["full", 1.0, "all"]["n"] == lines["oracle", 0.3, "all"]["n"] == 1
    assert all(0 <= line["accuracy"] <= 1 for line in lines.values())
    assert call(monkeypatch, *common, "--answers", "--max-tokens", "600") == 0
    assert "right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "documents are not in"),
        (["--questions", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["--questions", "MINE", "--fetch"], "omit it with --questions"),
        (["--questions", "MINE", "--max-tokens", "9"], "no document has at most 9 tokens; the shortest has"),
        (["--questions", "MINE", "--scorer", "tial"], "did you mean 'tail'"),
        (["--questions", "MINE", "--keep-ratio", "2"], "--keep-ratio"),
        (["--out", "/dev/null/rows.jsonl"], "cannot write below /dev/null"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    mine: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    named = [str(mine) if one == "MINE" else one for one in arguments]
    assert call(monkeypatch, "--device", "cpu", *named) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert "Traceback" not in told
    assert len(told.splitlines()) == 1
