"""What the embedded drafter was trained for stands under every table that ranks scorers by it, and under no other."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sp.commands.eval_run import ANSWERS, PERPLEXITY, show
from sp.evals.trained_for import TRAINED_FOR, note_of_file, note_of_hashes
from sp.pipeline import embedded
from sp.scoring import SCORERS
from sp.studies.pages.report import write_report
from sp.studies.sweep.store import Store, session_line

ROOT = Path(__file__).parents[2]
OURS = hashlib.sha256(embedded("drafter").read_bytes()).hexdigest()
RANKED = {"strategy", "answer", "tail@0.05"}
"""A table with one of these columns ranks scorers by what they keep."""


def rankings(page: str) -> list[str]:
    """What follows each ranking table of a page, up to the next empty line, as one line."""
    found = []
    for table in re.finditer(r"(?:^\|.*\n)+", page, re.M):
        heads = {head.strip() for head in table[0].split("\n")[0].strip("|").split("|")}
        if heads & RANKED and re.search(r"tail", table[0]):
            found.append(" ".join(page[table.end() :].lstrip("\n").split("\n\n")[0].split()))
    return found


def rows() -> list[dict[str, Any]]:
    """Two examples, in full and by two scorers."""
    common = {"task": "needle", "tokens_asked": 1024, "prompt_tokens": 1024, "selector": "top_chunks", "status": "ok",
              "correct": 1, "kept_tokens": 100, "realised_keep": 0.1, "given_kept": True, "needle_recall": 1.0,
              "needle_rank": 1, "needle_margin": 0.5, "ttft_s": 0.5}  # fmt: skip
    scorers = enumerate((("full", 1.0), ("tail", 0.1), ("random", 0.1)), -1)
    return [
        {**common, "example": f"e{number}", "cell": cell, "scorer": scorer, "keep_ratio": keep}
        for cell, (scorer, keep) in scorers
        for number in range(2)
    ]


def test_it_says_what_the_training_did() -> None:
    """The last seven prompt tokens before the one that begins the answer: the eight that `tail` reads."""
    trained = yaml.safe_load((ROOT / "experiments" / "needle_pair" / "configs" / "drafter-2.yaml").read_text())
    assert trained["recipe"]["tail"] == SCORERS.build("tail").queries - 1  # type: ignore[attr-defined]
    source = (ROOT / "experiments" / "needle_pair" / "drafter.py").read_text()
    assert "pointer_heads: tuple[int, ...] = (0, 2)  # heads of the last layer" in source
    assert "heads 0 and 2 of the embedded drafter's last layer" in TRAINED_FOR


def test_a_drafter_is_known_by_its_content(tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.gguf", tmp_path / "other.gguf"
    shutil.copy(embedded("drafter"), copy)
    other.write_bytes(bytes(embedded("drafter").stat().st_size))
    assert note_of_file(embedded("drafter")) == note_of_file(copy) == TRAINED_FOR
    assert note_of_file(other) == note_of_file(embedded("target")) == note_of_file(tmp_path / "none.gguf") == ""
    assert note_of_hashes([OURS]) == note_of_hashes(["0" * 64, OURS]) == TRAINED_FOR
    assert note_of_hashes(["0" * 64]) == ""


@pytest.mark.parametrize("columns", [ANSWERS, PERPLEXITY], ids=["answers", "perplexity"])
def test_sp_eval(columns, capsys: pytest.CaptureFixture[str]) -> None:
    for role, told in (("drafter", True), ("target", False)):
        pair = SimpleNamespace(drafter=SimpleNamespace(path=embedded(role)))
        show([{"n": 1, "not_run": 0}], columns, False, pair)  # type: ignore[arg-type]
        assert (TRAINED_FOR in " ".join(capsys.readouterr().out.split())) == told


@pytest.mark.parametrize(("digest", "told"), [(OURS, True), ("0" * 64, False)])
def test_reports_of_sweeps(digest: str, told: bool, tmp_path: Path) -> None:
    models = {"drafter": {"file": "d.gguf", "sha256": digest, "template_sha256": None}}
    with Store(tmp_path / "in" / "rows.jsonl", session_line("demo", "abc123", "cpu")) as store:
        store.add("a", rows(), seconds=1.0, config={"cells": []}, models=models)
    page = write_report([tmp_path / "in"], tmp_path / "out", times=False).read_text()
    found = rankings(page)
    assert len(found) == 5
    assert {text == TRAINED_FOR for text in found} == {told}
    assert page.count(TRAINED_FOR) == 5 * told


def test_reports_of_rows_that_name_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    page = write_report([tmp_path / "rows.jsonl"], tmp_path / "out", times=False).read_text()
    assert set(rankings(page)) == {f"If the drafter was the embedded one: {TRAINED_FOR}"}


@pytest.mark.parametrize(
    ("page", "least"),
    [("README.md", 2), ("sp/assets/MODEL_CARD.md", 1), ("results/nvidia-h200/study/report.md", 30)],
)
def test_pages_that_rank_scorers(page: str, least: int) -> None:
    found = rankings((ROOT / page).read_text())
    assert len(found) >= least
    assert set(found) == {TRAINED_FOR}
