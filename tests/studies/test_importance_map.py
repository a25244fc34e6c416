"""Maps of a saved run: spans of bytes become chunks of the drafter's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sp.errors import ConfigError
from sp.studies.pages.report import write_report
from sp.studies.plots.maps import SavedRun, importance_map

TOKENS, CHUNKS = 320, 10


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run whose every token covers two bytes, with a needle in tokens 64 to 95: chunk 2, exactly."""
    folder = tmp_path / "run"
    folder.mkdir()
    starts = 2 * np.arange(TOKENS)
    heads = np.random.default_rng(0).random((3, 4, CHUNKS)).astype(np.float32)
    arrays = {"drafter_bytes": np.stack([starts, starts + 2], axis=1), "by_head": heads, "by_layer": heads.max(axis=1)}
    save_file(arrays, folder / "trace.safetensors")
    spans = [("needle", 128, 192), ("question", 601, 640)]
    facts = {"spans": [{"kind": kind, "start_byte": start, "end_byte": end} for kind, start, end in spans]}
    (folder / "trace.json").write_text(json.dumps(facts))
    return folder


def test_spans_are_found_in_chunks(run_folder: Path) -> None:
    run = SavedRun.load(run_folder)
    assert run.has_maps
    assert run.chunks_of("needle") == [(2.0, 3.0)]
    assert run.chunks_of("question") == [(300 / 32, 10.0)]
    upper, lower = importance_map(run).axes[:2]
    assert upper.get_images()[0].get_array().shape == (3, CHUNKS)
    assert lower.get_images()[0].get_array().shape == (12, CHUNKS)


def test_a_report_draws_it(run_folder: Path, tmp_path: Path) -> None:
    text = write_report([run_folder], tmp_path / "out").read_text()
    assert "![Importance by layer and head](importance_heads.png)" in text
    assert (tmp_path / "out" / "importance_heads.png").read_bytes().startswith(b"\x89PNG")


def test_a_damaged_run_is_named(run_folder: Path, tmp_path: Path) -> None:
    (run_folder / "trace.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigError, match="no trace of sp run"):
        write_report([run_folder], tmp_path / "out")


def test_all_heads_of_a_large_target_are_a_picture_and_no_more_than_that(run_folder: Path) -> None:
    """Found by the fuzz: a map of 70,000 rows took seconds and 258 MiB, one of 5,120 was too tall to be saved."""
    arrays = load_file(run_folder / "trace.safetensors")
    heads = np.ones((80, 64, CHUNKS), np.float32)
    save_file(arrays | {"by_head": heads, "by_layer": heads.max(axis=1)}, run_folder / "trace.safetensors")
    figure = importance_map(SavedRun.load(run_folder))
    assert figure.get_size_inches()[1] * 160 < 1 << 15
    assert len(figure.axes[1].get_yticks()) <= 256
    save_file(arrays | {"by_head": np.ones((1, 70_000, 1), np.float32)}, run_folder / "trace.safetensors")
    with pytest.raises(ConfigError, match="by_head is larger than a map"):
        SavedRun.load(run_folder)
