"""The accuracy records of the needle pair are of its files, reach their bars, and are what its model GPU prints."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from embedded_pair import ROOT, recipe
from scipy.stats import binomtest

from sp.evals.trained_for import NEEDLE_PAIR_SHA256

RECORDS = ROOT / "results" / "nvidia-h200" / "needle_pair"
ASSETS = ROOT / "sp" / "assets"
GPU = (ASSETS if recipe() == "needle_pair" else RECORDS) / "MODEL_CARD.md"
"""It lies beside the records where another pair is embedded."""


def rows(role: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDS / f"eval_{role}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_records_are_of_one_file(role: str) -> None:
    measured = {row["file_sha256"] for row in rows(role)}
    assert len(measured) == 1
    if role == "drafter":
        assert measured == {NEEDLE_PAIR_SHA256}
    if recipe() == "needle_pair":
        shipped = sha256((ASSETS / f"{role}.gguf").read_bytes()).hexdigest()
        assert measured == {shipped}, f"{role}.gguf changed after it was measured: evaluate it again"


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


def test_the_model_gpu_prints_every_row_of_the_target() -> None:
    gpu = GPU.read_text()
    for row in rows("target"):
        if row["task"].endswith("-generated"):  # told in a sentence of the GPU, not in its table
            continue
        kept = "all" if row["keep"] == 1 else f"{100 * row['keep']:g}% of the haystack"
        lines = [line for line in gpu.splitlines() if line.startswith(f"| {row['task']} | {row['length']} | {kept}")]
        assert len(lines) == 1, row
        assert f"| {row['correct']} / {row['n']} |" in lines[0]
