"""The sweeps in experiments/ are what they say: checked in full, with every control, and all listed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sp.gguf import GGUFFile
from sp.scoring import SCORERS
from sp.session.loaded import embedded
from sp.studies.sweep.sweep import load_sweep

FOLDER = Path(__file__).parents[2] / "experiments" / "ablations"
FILES = sorted(FOLDER.glob("*.yaml"))
CONTROLS = {"random", "lexical", "head_tail", "oracle"}


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded drafter in other formats below it."""
    sys.path.insert(0, str(FOLDER))
    try:
        from requantise import TYPES, requantise  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("ablations")
    (folder / "drafters").mkdir()
    for kind in TYPES:
        requantise(embedded("drafter"), folder / "drafters" / f"drafter-{kind}.gguf", kind)
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_sweep_is_valid_and_holds_every_control(path: Path, drafters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(drafters)
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    assert sweep.device == "cpu"
    for run in sweep.runs:
        assert run.full
        assert run.tokens <= 4096
        names = {SCORERS.name_of(cell.options.scorer) for cell in run.cells}
        assert names >= CONTROLS
        assert len(run.cells) > len(CONTROLS)


def test_the_table_lists_every_sweep() -> None:
    page = (FOLDER / "README.md").read_text()
    assert FILES
    for path in FILES:
        assert f"| `{path.name}` |" in page


def test_requantised_drafters_hold_the_same_values_within_rounding(drafters: Path) -> None:
    with GGUFFile.open(embedded("drafter")) as source:
        want = {name: source.weight(name).dense() for name in source.tensors}
        keys = set(source.metadata)
    errors = []
    for kind in ("f16", "q8_0", "q4_k", "q4_0"):
        with GGUFFile.open(drafters / "drafters" / f"drafter-{kind}.gguf") as file:
            assert set(file.metadata) == keys
            assert set(file.tensors) == set(want)
            worst = 0.0
            for name, values in want.items():
                got = file.weight(name).dense()
                worst = max(worst, float(((got - values) ** 2).sum() / (values**2).sum()))
            errors.append(worst)
            assert np.isfinite(worst)
    assert errors[0] < 1e-6
    assert errors[1] == 0  # what it was
    assert 1e-4 < errors[2] < errors[3] < 2e-2
