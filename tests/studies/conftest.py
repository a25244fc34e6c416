"""A tiny sweep on the constructed retrievers, whose answers are exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sweep import SWEEP


@pytest.fixture
def sweep_file(tmp_path: Path, retriever_target: Path, retriever_drafter: Path) -> Path:
    """Three runs of two examples and five cells, results in ``tmp_path / "out"``."""
    path = tmp_path / "tiny.yaml"
    path.write_text(SWEEP.format(out=tmp_path / "out", target=retriever_target, drafter=retriever_drafter))
    return path
