"""What a start of a sweep will do: shards that are a partition, patterns, estimates, and what is done already."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp import cli
from sp.errors import ConfigError
from sp.models import flops
from sp.session.loaded import embedded, load
from sp.studies.sweep.conduct import Work, carry_out, deal, fit, from_earlier, make_plan, work_of
from sp.studies.sweep.executor import Outcome, RunWorker, stored_rows
from sp.studies.sweep.sweep import load_sweep


@given(st.lists(st.floats(0.1, 100), max_size=40), st.integers(1, 9))
def test_shards_are_a_partition_and_even(works: list[float], shards: int) -> None:
    dealt = deal(works, shards)
    assert len(dealt) == len(works)
    loads = [sum(work for work, owner in zip(works, dealt, strict=True) if owner == i) for i in range(shards)]
    assert max(loads) <= sum(works) / shards + max(works, default=0) + 1e-6


def test_estimates_recover_rates_and_never_go_below_nothing() -> None:
    works = [Work(flop, answers) for flop, answers in ((1e9, 5), (4e9, 5), (2e9, 40), (9e9, 1))]
    found = fit(works, [2e-9 * w.flop + 0.01 * w.answers for w in works], "test")
    assert found.seconds_per_flop == pytest.approx(2e-9)
    assert found.seconds_per_answer == pytest.approx(0.01)
    falling = fit([Work(1e9, 10), Work(2e9, 10)], [3.0, 1.0], "test")
    assert min(falling.seconds_per_flop, falling.seconds_per_answer) >= 0
    assert fit([Work(1e9, 1)], [2.0], "test").seconds(Work(2e9, 1)) == pytest.approx(4.0)


def test_who_reads_counts_and_how_often() -> None:
    """Operations of a run by hand: scorings that cells share, the full prefill, and what is kept of each prompt."""
    target, drafter = (load(embedded(role), device="cpu").model.config for role in ("target", "drafter"))
    tokens = 1000

    def work(*scorers: dict[str, object]) -> float:
        cells = [{"scorer": scorer, "keep_ratio": 0.1} for scorer in scorers]
        found = work_of({"tokens": tokens, "count": 3, "cells": cells, "full": True}, target, drafter)
        assert found.answers == 3 * (len(scorers) + 1)
        return found.flop / 3 - flops(target, tokens) - len(scorers) * flops(target, 100)

    tail, echo = {"name": "tail", "queries": 3}, {"name": "one of yours"}
    assert work({"name": "random", "run": 32}, {"name": "oracle"}) == pytest.approx(0, abs=1e-3)
    assert work(tail, tail, echo) == pytest.approx(2 * flops(drafter, tokens))
    assert work({"name": "target_attention"}) == pytest.approx(flops(target, tokens))
    assert work({"name": "leave_one_out", "among": 8}) == pytest.approx((2 + 8 / 2) * flops(target, tokens))
    assert work({"name": "leave_one_out", "among": 0}) == pytest.approx((2 + 32 / 2) * flops(target, tokens))


def test_plans(sweep_file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(sweep_file)
    whole = make_plan(sweep)
    assert len(whole.remaining) == 3
    assert whole.path == tmp_path / "out" / "rows.jsonl"
    parts = [make_plan(sweep, shard=(i, 2)) for i in (1, 2)]
    assert sorted(job.hash for part in parts for job in part.jobs) == sorted(job.hash for job in whole.jobs)
    assert parts[1].path.name == "rows-2of2.jsonl"
    assert [job.run.first for job in make_plan(sweep, only="*/300/2").jobs] == [2]
    with pytest.raises(ConfigError, match=r"--only 'x' matches none of 3 runs; the label of a run is like"):
        make_plan(sweep, only="x")
    with pytest.raises(ConfigError, match="do not fit"):
        make_plan(load_sweep(sweep_file, ["tasks.tokens=9999999"]))


def test_a_scaling_of_rope_is_a_pair_of_its_own(sweep_file: Path) -> None:
    path = sweep_file.with_name("scaled.yaml")
    path.write_text(sweep_file.read_text().replace("pairs: {", "pairs: {grid: {drafter_rope: [none, 'yarn:2']}, "))
    plain, scaled = make_plan(load_sweep(sweep_file)), make_plan(load_sweep(path))
    assert len({job.hash for job in (*plain.jobs, *scaled.jobs)}) == 3 * len(plain.jobs)
    assert {job.config["models"].get("drafter_rope") for job in scaled.jobs} == {"none", "yarn:2"}
    assert not any("drafter_rope" in job.config["models"] for job in plain.jobs), "hashes of earlier runs stand"
    by_rope = {facts.models["drafter"]["rope"]: facts.drafter for facts in scaled.facts.values()}
    assert by_rope["yarn:2"].context == 2 * by_rope["none"].context
    pair = next(run.pair for run in scaled.sweep.runs if str(run.pair.drafter_rope) == "yarn:2")
    drafter = RunWorker("cpu").pipeline(pair).drafter
    assert drafter is not None
    assert drafter.requested_rope == pair.drafter_rope


def test_an_arithmetic_is_a_pair_of_its_own(sweep_file: Path) -> None:
    path = sweep_file.with_name("math.yaml")
    grid = "pairs: {grid: {precision: [bf16, int8], drafter_precision: [bf16, auto]}, "
    path.write_text(sweep_file.read_text().replace("pairs: {", grid))
    plain, asked = make_plan(load_sweep(sweep_file)), make_plan(load_sweep(path))
    assert len({job.hash for job in asked.jobs}) == 4 * len(plain.jobs)
    assert {job.hash for job in plain.jobs} < {job.hash for job in asked.jobs}, "bf16 is what earlier runs were"
    found = {(job.config["models"].get("target_math"), job.config["models"].get("drafter_math")) for job in asked.jobs}
    assert found == {(None, None), ("int8", None), (None, "auto"), ("int8", "auto")}
    pair = next(
        run.pair
        for run in asked.sweep.runs
        if run.pair.changed_options == {"precision": "int8", "drafter_precision": "auto"}
    )
    pipeline = RunWorker("cpu").pipeline(pair)
    assert pipeline.drafter is not None
    made_in = [str(one.model.arithmetic.asked) for one in (pipeline.target, pipeline.drafter)]
    assert made_in == ["int8", "auto"]


def test_a_failed_run_is_told_and_tried_again(
    sweep_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    class Stub:
        def __init__(self, *arguments: object) -> None:
            pass

        def run(self, job: object) -> Outcome:
            first = job.first  # type: ignore[attr-defined]
            seen.append(first)
            if first == 2 and seen.count(2) == 1:
                return Outcome(error="the needle broke")
            return Outcome([{"cell": 0, "correct": 1}], 2.0)

    monkeypatch.setattr("sp.studies.sweep.conduct.RunWorker", Stub)
    assert call(monkeypatch, "sweep", sweep_file) == 1
    shown = capsys.readouterr()
    assert "2 runs done now, 0 before" in shown.out
    assert "sp: failed: " in shown.err
    assert "300/2: the needle broke" in shown.err
    plan = make_plan(load_sweep(sweep_file))
    assert [job.run.first for job in plan.remaining] == [2]
    estimate = from_earlier(plan)
    assert estimate is not None
    assert estimate.source == "2 earlier runs on this machine"
    assert estimate.seconds(plan.remaining[0].work) == pytest.approx(2.0, rel=0.01)
    assert call(monkeypatch, "sweep", sweep_file, "--dry-run") == 0
    assert "1 of 3 runs remain; about 2 s, by 2 earlier runs" in capsys.readouterr().out
    assert [outcome.error for _, outcome in carry_out(plan)] == [None]
    assert seen == [0, 2, 4, 2]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_rows_on_disk_have_facts_once_and_depths_as_examples_of_one_task(tmp_path: Path) -> None:
    path = tmp_path / "depths.yaml"
    path.write_text(
        "tasks: {grid: {task: [needle], task.depth: [0.1, 0.9], task.distractors: [2]}, tokens: 512, examples: 1}\n"
        "cells: {scorer: random}\n"
    )
    row = {"task": "needle", "example": "needle-512-0", "cell": -1, "answer": None, "keys": ["a"], "depth": 0.12}
    jobs = load_sweep(path).runs
    assert [job.label for job in jobs] == [
        "needle depth=0.1 distractors=2/512/0",
        "needle depth=0.9 distractors=2/512/0",
    ]
    first, second = stored_rows(jobs[0], [row, {**row, "cell": 0}])
    assert first == {
        "task": "needle distractors=2", "example": "needle-512-0 depth=0.1", "cell": -1, "keys": ["a"], "depth": 0.12,
        "asked_depth": 0.1,
    }  # fmt: skip
    assert second == {key: value for key, value in first.items() if key != "keys"} | {"cell": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "0/2"], "--shard takes i/n"),
        (["--executor", "raye"], "--executor is 'raye'; did you mean 'ray'"),
        (["--set", "cells.scorer=tial"], "--set cells.scorer: unknown scorer 'tial'; did you mean 'tail'"),
        (["--set", "tasks.task=nedle"], "unknown task 'nedle'; did you mean 'needle'"),
    ],
)
def test_bad_commands_are_one_line_and_status_2(
    sweep_file: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "sweep", sweep_file, *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (sweep_file.parent / "out").exists()


def test_every_sweep_of_the_repository_is_sound() -> None:
    files = sorted((Path(__file__).parents[2] / "experiments").rglob("*.yaml"))
    sweeps = [path for path in files if "cells:" in path.read_text() and "pairs:" not in path.read_text()]
    assert len(sweeps) >= 2
    for path in sweeps:
        assert load_sweep(path).runs, path
