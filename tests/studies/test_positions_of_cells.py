"""Positions `auto` of a cell are hashed and named as what they mean for the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.evals.run import cell_columns
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.session import RunOptions
from sp.studies.sweep.cells import strategy_name
from sp.studies.sweep.conduct import make_plan
from sp.studies.sweep.sweep import load_sweep

WINDOWED, PLAIN = (find_shape(name).config for name in ("gemma-3-270m", "qwen3-0.6b"))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windows") / "windowed.gguf"
    write_synthetic(path, "tiny-gemma3", "q8_0")
    return path


def planned(sweep_file: Path, *settings: str) -> tuple[list[str], list[list[str]]]:
    """Hashes of the runs, and positions of the cells of each."""
    jobs = make_plan(load_sweep(sweep_file, list(settings))).jobs
    return [job.hash for job in jobs], [[cell.config["positions"] for cell in job.run.cells] for job in jobs]


def test_runs_of_a_target_without_windows_have_the_hashes_that_they_had(sweep_file: Path) -> None:
    hashes, positions = planned(sweep_file)
    assert positions == [["original"] * 5] * 3, "as stored runs have it"
    assert planned(sweep_file, "cells.positions=original")[0] == hashes
    assert not set(planned(sweep_file, "cells.positions=contiguous")[0]) & set(hashes)


def test_runs_of_a_target_with_windows_are_those_of_contiguous_positions(sweep_file: Path, windowed: Path) -> None:
    target = f"pairs.target={windowed}"
    hashes, positions = planned(sweep_file, target)
    assert positions == [["contiguous"] * 5] * 3
    assert planned(sweep_file, target, "cells.positions=contiguous")[0] == hashes
    assert not set(planned(sweep_file, target, "cells.positions=original")[0]) & set(hashes)


def test_cells_that_mean_the_same_are_one(sweep_file: Path, windowed: Path) -> None:
    every = "cells.positions=[auto,original,contiguous]"
    for settings in ([every], [every, f"pairs.target={windowed}"]):
        assert [len(cells) for cells in planned(sweep_file, *settings)[1]] == [10] * 3


def test_text_rejoin_is_a_cell_without_positions(sweep_file: Path) -> None:
    hashes, positions = planned(sweep_file, "cells.mapping=text_rejoin")
    assert positions == [["contiguous"] * 5] * 3
    assert planned(sweep_file, "cells.mapping=text_rejoin", "cells.positions=contiguous")[0] == hashes


def test_rows_have_the_positions_that_were_used() -> None:
    options = RunOptions(scorer="tail")
    assert cell_columns(0, options, PLAIN)["positions"] == "original"
    assert cell_columns(-1, options, WINDOWED)["positions"] == "original", "a full prefill leaves nothing out"
    row = cell_columns(0, options, WINDOWED)
    assert row["positions"] == "contiguous"
    assert strategy_name(row, False) == "tail + positions=contiguous"
    assert strategy_name(cell_columns(0, options, PLAIN), False) == "tail"
