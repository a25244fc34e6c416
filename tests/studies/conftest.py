"""A tiny sweep on the constructed retrievers, whose answers are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

SWEEP = """\
name: tiny
out: {out}
device: cpu
pairs: {{target: {target}, drafter: {drafter}}}
tasks:
  task: needle
  task.value: word
  tokens: 300
  examples: 6
  per_run: 2
cells:
  - grid: {{scorer: [tail, random], keep_ratio: [0.3, 0.4]}}
  - {{scorer: oracle, keep_ratio: 0.3}}
"""


@pytest.fixture
def sweep_file(tmp_path: Path, retriever_target: Path, retriever_drafter: Path) -> Path:
    """Three runs of two examples and five cells, results in ``tmp_path / "out"``."""
    path = tmp_path / "tiny.yaml"
    path.write_text(SWEEP.format(out=tmp_path / "out", target=retriever_target, drafter=retriever_drafter))
    return path
