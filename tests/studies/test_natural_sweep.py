"""Task natural in sweeps: the rows of `sp eval natural`, resumed after a kill; errors before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sp.errors import ConfigError
from sp.evals.natural.questions import own_questions
from sp.evals.natural.rows import NaturalRun
from sp.session import Pipeline
from sp.session.loaded import embedded
from sp.studies.sweep.conduct import carry_out, make_plan
from sp.studies.sweep.store import dump_line, read_results
from sp.studies.sweep.sweep import Sweep, load_sweep

ROOT = Path(__file__).parents[2]
SWEEP = """\
device: cpu
out: {folder}/out
tasks:
  task: {{name: natural, questions: "{folder}/mine.jsonl"}}
  per_run: 2
cells:
  grid: {{scorer: [bm25, random], keep_ratio: [0.2, 0.4]}}
"""
TIMES = ("score_s", "select_s")


def write_questions(path: Path) -> Path:
    """Five questions about one document."""
    lines = [f"The lamp of room {number} burns with {number % 7 + 3} candles.\n" for number in range(40)]
    (path.parent / "house.txt").write_text("".join(lines))
    records = [
        {
            "document": "house.txt", "question": f"How is room {number} lit?", "answers": "candles", "kind": "how",
            "evidence": [lines[number]],
        }
        for number in range(3, 33, 6)
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    write_questions(tmp_path / "mine.jsonl")
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(folder=tmp_path))
    return path


def rows_of(sweep: Sweep) -> list[dict[str, Any]]:
    for _, outcome in carry_out(make_plan(sweep)):
        assert outcome.error is None
    return list(read_results([sweep.out / "rows.jsonl"]).all_rows())


def test_rows_are_those_of_the_command_and_runs_are_done_once(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file)
    assert [(run.first, run.count, run.full) for run in sweep.runs] == [(0, 2, False), (2, 2, False), (4, 1, False)]
    found = rows_of(sweep)
    work = NaturalRun(Pipeline.open(device="cpu"), [cell.options for cell in sweep.runs[0].cells])
    wanted = [row for one in own_questions(tmp_path / "mine.jsonl") for row in work.rows(one)]
    assert len(found) == len(wanted) == 5 * 4
    for ours, theirs in zip(found, wanted, strict=True):
        told = json.loads(dump_line({"fact_kind": theirs.pop("kind"), **theirs, "kind": "row"}))
        assert {name: ours[name] for name in told if name not in TIMES} == {
            name: value for name, value in told.items() if name not in TIMES
        }
        assert (ours["task"], ours["example"]) == (sweep.runs[0].spec.name, ours["question"])
    assert not make_plan(sweep).remaining
    rows = tmp_path / "out" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-9])  # as if it had been killed in its last run
    plan = make_plan(sweep)
    assert [job.run.first for job in plan.remaining] == [4]
    assert [row["example"] for row in rows_of(sweep)] == [row["example"] for row in found]
    with pytest.raises(
        ConfigError, match=r"rows.jsonl, line 2: this row of task natural has no answer, which a report needs"
    ):
        read_results([rows]).checked()


def test_answers_are_given_where_they_are_asked_for(file: Path, tmp_path: Path) -> None:
    settings = [f"tasks.task={{name: natural, questions: {tmp_path / 'mine.jsonl'}, answers: true}}"]
    sweep = load_sweep(file, [*settings, "tasks.examples=1", "cells.keep_ratio=0.4"])
    plan = make_plan(sweep)
    assert plan.jobs[0].work.answers == 3
    assert plan.jobs[0].work.flop > make_plan(load_sweep(file)).jobs[0].work.flop == 0
    found = rows_of(sweep)
    assert [row["scorer"] for row in found] == ["full", "bm25", "random"]
    assert {row["correct"] for row in found} <= {0, 1}
    read_results([tmp_path / "out" / "rows.jsonl"]).checked()


def test_another_document_is_another_run(file: Path, tmp_path: Path) -> None:
    before = [job.hash for job in make_plan(load_sweep(file)).jobs]
    house = tmp_path / "house.txt"
    house.write_text(house.read_text() + "The lamps are out.\n")
    assert not {job.hash for job in make_plan(load_sweep(file)).jobs} & {*before}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tasks.tokens=8k", "documents of task natural have their own lengths; omit tokens"),
        ("tasks.examples=6", "there are 5 questions, fewer than the 6 that are needed; lower examples"),
        ("tasks.first=5", "there are 5 questions, fewer than the 6 that are needed; lower first"),
        ("tasks.task={name: natural, questions: none.jsonl}", "cannot read none.jsonl"),
        ("tasks.task={name: natural, question: x}", "question"),
        ("tasks.task=natural", "documents are not in .*run sp eval natural --fetch to get them"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(file: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(file, [setting])


def test_the_sweep_of_real_weights_is_sound(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needles").mkdir()
    for length in ("6k", "28k", "60k", "120k"):
        write_questions(tmp_path / "needles" / f"needles-{length}.jsonl")
    mine = own_questions(tmp_path / "mine.jsonl")
    monkeypatch.setattr("sp.evals.natural.questions.known_questions", lambda: mine)
    pair = [f"pairs.{role}={embedded(role)}" for role in ("target", "drafter")]
    sweep = load_sweep(ROOT / "experiments" / "real.yaml", pair)
    assert len(sweep.runs) == 5 * 5
    assert len({run.part for run in sweep.runs}) == 5
    assert {cell.options.keep_ratio for run in sweep.runs for cell in run.cells} == {0.2, 0.1, 0.05}
    with pytest.raises(ConfigError, match=r"map of scorer retrieval_heads: needles/heads.json is not a file"):
        make_plan(sweep)
    few = [*pair, "tasks.task=natural", "tasks.examples=2", "cells.scorer=[bm25, random]"]
    plan = make_plan(load_sweep(ROOT / "experiments" / "real.yaml", few))
    assert len(plan.jobs) == 1
