"""Decoding as an option of cells: what a sweep file may say, what its rows tell, and hashes of runs without it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from models.tiny_drafts import write_draft

from sp.errors import ConfigError
from sp.gguf import GGUFFile
from sp.models import read_config
from sp.models.synthetic.shapes import find_shape
from sp.studies.sweep.cells import Table
from sp.studies.sweep.conduct import carry_out, make_plan
from sp.studies.sweep.store import read_results
from sp.studies.sweep.sweep import config_hash, load_sweep
from sp.studies.tables.report_tables import decode_table

ROOT = Path(__file__).parents[2]
WAYS = "cells.decode=[greedy, {name: dflash}, {name: ddtree, budget: 4}]"


@pytest.fixture
def drafted(sweep_file: Path, retriever_target: Path, tmp_path: Path) -> list[str]:
    """Settings that make the tiny sweep speculative."""
    with GGUFFile.open(retriever_target) as file:
        config = read_config(file)
    draft = write_draft(tmp_path, "dflash", config, (0, config.layers - 1))
    fewer = ["tasks.examples=1", "cells.scorer=tail", "cells.keep_ratio=0.4"]
    return [f"pairs.speculator={draft}", WAYS, *fewer]


def test_rows_tell_how_answers_were_decoded(sweep_file: Path, drafted: list[str]) -> None:
    plan = make_plan(load_sweep(sweep_file, drafted))
    assert [outcome.error for _, outcome in carry_out(plan)] == [None]
    rows = list(read_results([plan.path]).all_rows())
    by_way = {row["decode"]: row for row in rows if row["cell"] >= 0}
    assert list(by_way) == ["greedy", "dflash", "ddtree budget=4"]
    assert "acceptance_length" not in by_way["greedy"]
    assert min(by_way[way]["acceptance_length"] for way in ("dflash", "ddtree budget=4")) >= 1
    assert len({row["answer"] for row in by_way.values()}) == 1
    assert all(row["decode_s"] > 0 for row in rows)
    assert {row["decode"] for row in rows if row["cell"] < 0} == {"greedy"}
    lines = decode_table(Table.of(rows), [0.4]).splitlines()
    assert any("tail + decode=ddtree budget=4" in line for line in lines)


def test_a_greedy_run_has_the_hash_it_had_before_there_was_a_choice() -> None:
    with gzip.open(next((ROOT / "results/nvidia-h200/study").glob("*.jsonl.gz")), "rt") as file:
        closing = next(line for line in map(json.loads, file) if line["kind"] == "run")
    assert config_hash(closing["config"]) == closing["run"]
    sweep = load_sweep(ROOT / "experiments" / "study.yaml")
    known = {json.dumps(cell, sort_keys=True) for cell in closing["config"]["cells"]}
    target = find_shape("qwen3.6-27b").config  # without windows, as all targets were
    cells = [cell.resolve(target) for run in sweep.runs for cell in run.cells]
    mine = {json.dumps(json.loads(json.dumps(cell.config)), sort_keys=True) for cell in cells}
    assert known <= mine


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["cells.decode=ddtre"], "did you mean 'ddtree'"),
        (["cells.decode={name: ddtree, budgt: 4}"], "did you mean 'budget'"),
        (["cells.decode={name: ddtree, budget: 0}"], "budget is 0"),
        (["cells.decode=dflash"], "need a draft model for target.gguf; add pairs"),
        (["pairs.speculator=none.gguf", "cells.decode=dflash"], "speculator none.gguf is not a file"),
        (["pairs.speculatr=x"], "did you mean 'speculator'"),
    ],
)
def test_what_a_file_may_not_say(sweep_file: Path, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_sweep(sweep_file, settings)


def test_the_embedded_target_has_its_own_draft(tmp_path: Path) -> None:
    text = "tasks: {task: needle, tokens: 600, examples: 1}\ncells: {decode: [greedy, ddtree]}\n"
    path = tmp_path / "x.yaml"
    path.write_text(text.replace("[greedy, ddtree]", "ddtree"))
    assert load_sweep(path).runs[0].pair.speculator.name == "draft.gguf"  # type: ignore[union-attr]
    path.write_text(text.replace("[greedy, ddtree]", "greedy"))
    assert load_sweep(path).runs[0].pair.speculator is None
    run = load_sweep(ROOT / "experiments" / "decoding.yaml").runs[0]
    assert [cell.config.get("decode", {}).get("budget", "greedy") for cell in run.cells] == ["greedy", None, 8, 22] * 2
