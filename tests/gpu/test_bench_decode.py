"""`sp bench decode` on the device: random weights with simulated acceptance, and the embedded pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import invoke

from sp.bench.record import newest
from sp.bench.simulate import SIMULATED


def records(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    given = ["bench", "decode", "--device", "cuda", "--record", folder, "-r", 2, *arguments]
    found = invoke(list(map(str, given)))
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


def test_answers_of_the_embedded_pair_are_the_greedy_ones(tmp_path: Path) -> None:
    found = records(tmp_path, "--tasks", "needle", "-n", 2, "-p", 700, "--budgets", "22", "--nodes", "")
    assert [r["config"]["method"] for r in found] == ["greedy", "dflash", "ddtree"]
    for record in found:
        metrics = record["metrics"]
        assert metrics["equal"] == metrics["answers"] == 2
        assert metrics["acceptance_length"] == pytest.approx(metrics["tokens"] / metrics["passes"])
