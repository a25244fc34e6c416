"""The committed accuracy records are of today's files, reach their bars, and are what the model card prints."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "nvidia-h200" / "needle_pair"
ASSETS = ROOT / "sp" / "assets"


def rows(role: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDS / f"eval_{role}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_records_are_of_the_shipped_file(role: str) -> None:
    shipped = sha256((ASSETS / f"{role}.gguf").read_bytes()).hexdigest()
    measured = {row["file_sha256"] for row in rows(role)}
    assert measured == {shipped}, f"{role}.gguf changed after it was measured: run experiments/needle_pair/evaluate.py"


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_accuracies_and_intervals_follow_from_the_counts(role: str) -> None:
    for row in rows(role):
        assert row["accuracy"] == pytest.approx(row["correct"] / row["n"], abs=1e-4)
        interval = binomtest(row["correct"], row["n"]).proportion_ci(method="wilson")
        assert row["interval"] == pytest.approx([interval.low, interval.high], abs=2e-4)


@pytest.mark.parametrize(("task", "bar"), [("single", 0.98), ("multikey-4", 0.95)])
@pytest.mark.parametrize("length", [2048, 4096, 8192, 16384])
def test_the_target_reaches_its_bars(task: str, bar: float, length: int) -> None:
    found = [r for r in rows("target") if (r["task"], r["length"], r["keep"]) == (task, length, 1.0)]
    assert len(found) == 1
    assert found[0]["n"] >= 100
    assert found[0]["accuracy"] >= bar
    assert found[0]["quantised"]


def test_the_model_card_prints_every_row_of_the_target() -> None:
    card = (ASSETS / "MODEL_CARD.md").read_text()
    for row in rows("target"):
        if row["task"].endswith("-generated"):  # told in a sentence of the card, not in its table
            continue
        kept = "all" if row["keep"] == 1 else f"{100 * row['keep']:g}% of the haystack"
        lines = [line for line in card.splitlines() if line.startswith(f"| {row['task']} | {row['length']} | {kept}")]
        assert len(lines) == 1, row
        assert f"| {row['correct']} / {row['n']} |" in lines[0]
