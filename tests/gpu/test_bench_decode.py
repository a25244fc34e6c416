"""`sp bench decode` on the device: a tiny pair with random weights, measured and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sp.bench.record import newest
from sp.bench.simulate import SIMULATED
from sp.cli import app
from sp.models.dflash_synthetic import write_synthetic_draft
from sp.models.synthetic import write_synthetic


def records(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    given = ["bench", "decode", "--device", "cuda", "--record", folder, "-r", 2, *arguments]
    found = CliRunner().invoke(app, list(map(str, given)))
    if found.exception is not None:
        raise found.exception
    return [record for path in sorted(folder.rglob("*.jsonl")) for record in newest(path)]


def test_acceptance_is_what_was_simulated_and_rounds_are_timed(tmp_path: Path) -> None:
    asked = (
        "--synthetic",
        "tiny-qwen35",
        "--type",
        "q8_0",
        "--accept",
        "5",
        "--budgets",
        "15,22",
        "--new",
        40,
        "-p",
        300,
    )
    found = records(tmp_path, *asked)
    told = [r for r in found if r["config"].get("mode") == SIMULATED]
    assert {(r["config"]["method"], r["config"]["budget"]) for r in told} == {
        ("dflash", 15), ("ddtree", 15), ("ddtree", 22),
    }  # fmt: skip
    assert all(r["metrics"]["acceptance_length"] == 5 for r in told)
    rounds = [r["metrics"] for r in found if r["bench"] == "verify"]
    assert len(rounds) == 2
    assert all(min(m["ms"], m["draft_ms"], m["keep_ms"], m["decode_ms"]) > 0 for m in rounds)
    assert all(r["gpu"] for r in found)


def test_answers_of_a_pair_are_the_greedy_ones(tmp_path: Path) -> None:
    target = write_synthetic(tmp_path / "target.gguf", "tiny-qwen35", "q8_0")
    draft = write_synthetic_draft(tmp_path / "draft.gguf", "dflash-tiny-qwen35", "q8_0")
    asked = (
        "--target",
        target,
        "--draft",
        draft,
        "--tasks",
        "needle",
        "-n",
        2,
        "-p",
        300,
        "--budgets",
        "22",
        "--nodes",
        "",
    )
    found = records(tmp_path / "r", *asked)
    assert [r["config"]["method"] for r in found] == ["greedy", "dflash", "ddtree"]
    for record in found:
        metrics = record["metrics"]
        assert metrics["equal"] >= metrics["answers"] - 1, "random weights tie more often than trained ones"
        assert metrics["acceptance_length"] == pytest.approx(metrics["tokens"] / metrics["passes"])
