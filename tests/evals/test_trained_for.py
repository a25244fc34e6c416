"""What a drafter was trained for is said wherever scorers are ranked by it: once on a page that a report makes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from leaderboard_table import RECORDS

from sp.commands.eval.run import ANSWERS, PERPLEXITY, EvalOptions, show
from sp.evals.trained_for import (
    BEGINS,
    KEY,
    LONGEST,
    NEEDLE_PAIR_SHA256,
    TRAINED_FOR,
    note_of_file,
    note_of_metadata,
    note_of_records,
)
from sp.gguf import GGUFWriter
from sp.quant import F32
from sp.session import embedded
from sp.studies.pages.report import write_report
from sp.studies.sweep.provenance import pair_facts
from sp.studies.sweep.store import Store, session_line
from sp.studies.sweep.sweep import Pair

ROOT = Path(__file__).parents[2]
OURS = note_of_file(embedded("drafter"))
measured = pytest.mark.skipif(
    not all(folder.is_dir() for folder in RECORDS), reason="the embedded pair is not measured yet"
)
SAID = "no head was supervised; `tail` had no help."
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


def written(path: Path, metadata: dict[str, Any]) -> Path:
    """A file with nothing in it but a header and one small tensor."""
    writer = GGUFWriter(path, {"general.architecture": "qwen3"} | metadata)
    writer.add("w", (2,), F32, F32.encode(np.ones(2, np.float32)))
    return writer.write()


def test_a_drafter_says_it_itself(tmp_path: Path) -> None:
    named = {"general.name": "needle-pair-drafter"}
    for metadata, note in (
        ({KEY: SAID}, BEGINS + SAID),
        (named | {KEY: SAID}, BEGINS + SAID),
        (named, TRAINED_FOR),
        (named | {KEY: " \n"}, TRAINED_FOR),
        ({"general.name": "needle-pair-target"}, ""),
        ({"general.name": 7, KEY: 7}, ""),
        ({}, ""),
    ):
        assert note_of_file(written(tmp_path / "said.gguf", metadata)) == note_of_metadata(metadata) == note


def test_the_embedded_drafter_and_its_copies_say_it_and_the_target_is_no_drafter(tmp_path: Path) -> None:
    copy, damaged = tmp_path / "copy.gguf", tmp_path / "damaged.gguf"
    shutil.copy(embedded("drafter"), copy)
    damaged.write_bytes(bytes(embedded("drafter").stat().st_size))
    assert note_of_file(copy) == OURS != ""
    assert note_of_file(damaged) == note_of_file(tmp_path / "none.gguf") == ""


def test_a_strangers_words_are_one_plain_bounded_line() -> None:
    note = note_of_metadata({KEY: "\x1b[2Jone\n\n| two | <script>" + "x" * 10**6})
    assert len(note) == LONGEST
    assert note.isprintable()
    assert not set("\x1b\n<>|[]") & set(note)
    assert note_of_records([{"sha256": "0", "trained_for": "<b>\n" * 10**5}]).startswith("(b) (b)")


def test_records_of_sweeps(tmp_path: Path) -> None:
    old, other = {"sha256": NEEDLE_PAIR_SHA256}, {"sha256": "0" * 64}
    new = {"sha256": "1" * 64, "trained_for": BEGINS + SAID}
    assert note_of_records([old]) == note_of_records([other, old]) == TRAINED_FOR
    assert note_of_records([old, new, old]) == f"{TRAINED_FOR} {BEGINS}{SAID}"
    assert note_of_records([other]) == note_of_records([{**other, "trained_for": None}]) == ""
    assert note_of_records([]) == f"If the drafter was the embedded one: {OURS}"
    kept = pair_facts(Pair()).models
    assert kept["drafter"]["trained_for"] == note_of_records([kept["drafter"]]) == OURS
    assert "trained_for" not in kept["target"]


@pytest.mark.parametrize("columns", [ANSWERS, PERPLEXITY], ids=["answers", "perplexity"])
def test_sp_eval(columns, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = written(tmp_path / "silent.gguf", {})
    for path, told in ((embedded("drafter"), True), (silent, False)):
        pair = SimpleNamespace(drafter=SimpleNamespace(path=path))
        show([{"n": 1, "not_run": 0, "scorer": "tail", "selector": "top_chunks"}], columns, EvalOptions(), pair)  # type: ignore[arg-type]
        out = " ".join(capsys.readouterr().out.split())
        assert (OURS in out, "trained" in out) == (told, told)


@pytest.mark.parametrize(
    ("drafter", "note"),
    [
        ({"sha256": NEEDLE_PAIR_SHA256}, TRAINED_FOR),
        ({"sha256": "1", "trained_for": SAID}, SAID),
        ({"sha256": "0"}, ""),
    ],
)
def test_reports_of_sweeps(drafter: dict[str, str], note: str, tmp_path: Path) -> None:
    models = {"drafter": {"file": "d.gguf", "template_sha256": None, **drafter}}
    with Store(tmp_path / "in" / "rows.jsonl", session_line("demo", "abc123", "cpu")) as store:
        store.add("a", rows(), seconds=1.0, config={"cells": []}, models=models)
    page = write_report([tmp_path / "in"], tmp_path / "out", times=False).read_text()
    assert len(rankings(page)) == 5
    if note:
        assert page.count(note) == 1, "once, and not under every table"
        assert page.index(note) < page.index("| strategy |")
    else:
        assert "trained for" not in page


def test_reports_of_rows_that_name_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    page = write_report([tmp_path / "rows.jsonl"], tmp_path / "out", times=False).read_text()
    assert page.count(f"If the drafter was the embedded one: {OURS}") == 1


@pytest.mark.parametrize(
    ("page", "least", "notes"),
    [
        ("docs/quickstart.md", 1, {OURS}),
        ("docs/results/study.md", 1, {TRAINED_FOR}),
        pytest.param("sp/assets/MODEL_CARD.md", 1, {OURS}, marks=measured),
        ("results/nvidia-h200/study/report.md", 30, {TRAINED_FOR, OURS}),
    ],
)
def test_pages_that_rank_scorers(page: str, least: int, notes: set[str]) -> None:
    found = rankings((ROOT / page).read_text())
    assert len(found) >= least
    assert set(found) <= notes
