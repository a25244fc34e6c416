"""Files of scorers in a sweep: another one for every task, known by content, and missed before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp.errors import ConfigError
from sp.scoring.attention.heads import RetrievalHeadsScorer
from sp.studies.sweep.conduct import make_plan
from sp.studies.sweep.sweep import load_sweep

SWEEP = """\
tasks:
  grid: {{task: [needle, {{name: vt, shots: 0}}]}}
  tokens: 512
  examples: 2
  per_run: 1
cells:
  - {{scorer: {{name: retrieval_heads, map: "{folder}/heads-without-{{task}}.json"}}}}
  - {{scorer: tail}}
"""


def test_a_scorer_gets_the_file_of_each_task(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SWEEP.format(folder=tmp_path))
    runs = load_sweep(path).runs
    named = {}
    for run in runs:
        scorer = run.cells[0].options.scorer
        assert isinstance(scorer, RetrievalHeadsScorer)
        named[run.spec.config["name"]] = scorer.map
        assert run.cells[0].config["scorer"]["map"] == scorer.map
    assert named == {name: f"{tmp_path}/heads-without-{name}.json" for name in ("needle", "vt")}


def test_files_count_by_content_and_are_missed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "x.yaml"
    path.write_text(SWEEP.format(folder=tmp_path))
    (tmp_path / "heads-without-needle.json").write_text("one")
    with pytest.raises(ConfigError, match=r"vt shots=0/512/0: map of scorer retrieval_heads: .*without-vt.json is not"):
        make_plan(load_sweep(path))
    (tmp_path / "heads-without-vt.json").write_text("two")
    before = {job.run.label: job for job in make_plan(load_sweep(path)).jobs}
    (tmp_path / "heads-without-vt.json").write_text("three")
    after = {job.run.label: job for job in make_plan(load_sweep(path)).jobs}
    changed = {label for label, job in after.items() if job.hash != before[label].hash}
    assert changed == {"vt shots=0/512/0", "vt shots=0/512/1"}
    files = after["needle/512/0"].config["files"]
    assert list(files) == [f"{tmp_path}/heads-without-needle.json"]
    assert len(files[f"{tmp_path}/heads-without-needle.json"]) == 64
    json.dumps(after["needle/512/0"].config)
