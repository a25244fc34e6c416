"""The rule of the target's attention as keys of cells: read, run, told in rows, and part of hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoke

from sp.errors import ConfigError
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.studies.board.entries import command_of
from sp.studies.sweep.cells import strategy_name
from sp.studies.sweep.conduct import make_plan
from sp.studies.sweep.store import read_results, result_files
from sp.studies.sweep.sweep import load_sweep


def rules(sweep_file: Path, *settings: str) -> list[object]:
    return [cell.options.target_sparse for cell in load_sweep(sweep_file, settings).runs[0].cells]


def test_a_cell_has_the_rule_that_its_keys_say(sweep_file: Path) -> None:
    assert set(rules(sweep_file)) == {None}
    assert set(rules(sweep_file, "cells.target.skip=0.05")) == {SkipSoftmax(0.05)}
    both = rules(sweep_file, "cells.target.alpha=[0.1,0.2]", "cells.target.window=2")
    assert set(both) == {FlashPrefill(0.1, window=2), FlashPrefill(0.2, window=2)}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cells.target.skip=2", "--set cells.target.skip: target: skip is 2.0; it must be at least 0 and below 1"),
        ("cells.target.skipp=2", "--set cells.target.skipp: unknown option of target 'skipp'; did you mean 'skip'"),
        ("cells.target.window=2", "target: alpha is required"),
        ("cells.target=0.1", "unknown key of a cell 'target'; did you mean 'target.OPTION'"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(sweep_file: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_sweep(sweep_file, [setting])
    assert said in str(raised.value)


def test_the_rule_is_part_of_a_runs_hash_and_none_is_as_before(sweep_file: Path) -> None:
    def hashes(*settings: str) -> set[str]:
        return {job.hash for job in make_plan(load_sweep(sweep_file, settings)).jobs}

    dense, skip, more = hashes(), hashes("cells.target.skip=0.05"), hashes("cells.target.skip=0.1")
    assert not dense & skip
    assert not skip & more
    cell = load_sweep(sweep_file, ["cells.target.skip=5.0e-2"]).runs[0].cells[0]
    assert json.loads(json.dumps(cell.config))["sparse"] == {"skip": 0.05}
    assert load_sweep(sweep_file).runs[0].cells[0].config["sparse"] is None


def test_rows_tell_the_rule_and_reports_keep_it_apart(sweep_file: Path) -> None:
    text = sweep_file.read_text().partition("cells:")[0].replace("examples: 6", "examples: 1")
    cells = "cells: {scorer: tail, keep_ratio: 0.4, list: [{seed: 0}, {target.skip: 0.05}, {target.alpha: 0.1}]}\n"
    sweep_file.write_text(text + cells)
    assert invoke("sweep", sweep_file).exit_code == 0
    rows = [row for row in read_results(result_files(sweep_file.parent / "out")).all_rows() if row["cell"] >= 0]
    assert [row.get("target_sparse") for row in rows] == [None, "skip:0.05", "alpha:0.1"]
    names = [strategy_name(row, False) for row in rows]
    assert "target_sparse" not in names[0]
    assert "target_sparse=skip:0.05" in names[1]
    assert "target_sparse=alpha:0.1" in names[2]
    again = [command_of(row, ["needle"], 1, {}, "tiny") for row in rows]
    assert [command.split()[1] for command in again] == ["eval", "sweep", "sweep"]


def test_the_keys_are_listed() -> None:
    assert "target.OPTION" in invoke("list", "keys", "cells").stdout
