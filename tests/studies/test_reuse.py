"""A sweep file that changes runs what is new in it: an added scorer by itself, and nothing because of a comment."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_sweep import SWEEP

from sp.errors import ConfigError
from sp.scoring.base import SCORERS
from sp.studies.pages.report import write_report
from sp.studies.sweep.comparable import comparable
from sp.studies.sweep.conduct import SweepPlan, carry_out, make_plan
from sp.studies.sweep.provenance import code_sha256, files_sha256, scorer_files
from sp.studies.sweep.store import read_results
from sp.studies.sweep.sweep import load_sweep

PLUGIN = '''\
"""A scorer of my own."""
from dataclasses import dataclass

import numpy as np

from sp import Importance, ModelFreeScorer, register_scorer


@register_scorer("mine_of_reuse")
@dataclass(frozen=True)
class Mine(ModelFreeScorer):
    """Prefers the beginning."""

    def score(self, request):
        """Falling scores."""
        n = len(request.ids)
        return Importance(np.linspace(1.0, 0.0, n, dtype=np.float32))  # from 1 to 0
'''


def added(path: Path, scorer: str) -> None:
    path.write_text(path.read_text().replace("scorer: [tail,", f"scorer: [{scorer}, tail,"))


def carried_out(sweep: Path) -> bytes:
    """The rows of a sweep, all of its runs done."""
    plan = make_plan(load_sweep(sweep))
    assert [outcome.error for _, outcome in carry_out(plan)] == [None] * 3
    return plan.path.read_bytes()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, retriever_target: Path, retriever_drafter: Path) -> bytes:
    """Those of the sweep that every test begins with: carried out once, as it takes seconds."""
    path = tmp_path_factory.mktemp("once") / "tiny.yaml"
    path.write_text(SWEEP.format(out=path.parent / "out", target=retriever_target, drafter=retriever_drafter))
    return carried_out(path)


@pytest.fixture
def done(sweep_file: Path, rows: bytes) -> SweepPlan:
    """The plan of the sweep before it is done; its rows are there, as if it were."""
    plan = make_plan(load_sweep(sweep_file))
    plan.path.parent.mkdir(parents=True)
    plan.path.write_bytes(rows)
    return plan


def test_an_added_scorer_is_run_by_itself(done: SweepPlan, sweep_file: Path, tmp_path: Path) -> None:
    first = done
    assert len(first.remaining) == 3
    assert make_plan(load_sweep(sweep_file)).remaining == []
    added(sweep_file, "bm25")
    plan = make_plan(load_sweep(sweep_file))
    assert [[cell.config["scorer"]["name"] for cell in job.run.cells] for job in plan.remaining] == [["bm25"] * 2] * 3
    assert not any(job.run.full for job in plan.remaining), "the prompts were read in full before"
    assert [job.completes for job in plan.remaining] == [(job.hash,) for job in first.jobs]
    assert [outcome.error for _, outcome in carry_out(plan)] == [None] * 3
    again = make_plan(load_sweep(sweep_file))
    assert again.remaining == []
    assert again.other_commits() == set()
    results = read_results([plan.path]).checked()
    [(name, group)] = comparable(results).items()
    assert name == "Part 1"
    counts = Counter((row["scorer"], row["keep_ratio"]) for row in group.rows)
    assert set(counts.values()) == {6}, "each example once"
    assert counts.keys() >= {("full", 1.0), ("bm25", 0.3), ("bm25", 0.4), ("tail", 0.3), ("oracle", 0.3)}
    text = write_report([plan.path.parent], tmp_path / "report", times=False).read_text()
    assert "| bm25 |" in text
    assert "# Part" not in text


def test_a_scorer_taken_away_leaves_nothing_to_do(done: SweepPlan, sweep_file: Path) -> None:
    sweep_file.write_text(sweep_file.read_text().replace("[tail, random]", "[random]"))
    assert make_plan(load_sweep(sweep_file)).remaining == []
    sweep_file.write_text(sweep_file.read_text().replace("keep_ratio: 0.3}", "keep_ratio: 0.3, kv: q8_0}"))
    [left, *_] = make_plan(load_sweep(sweep_file)).remaining
    assert [cell.config["kv"] for cell in left.run.cells] == ["q8_0"]


def test_a_full_prefill_in_another_format_is_another_one(done: SweepPlan, sweep_file: Path) -> None:
    text = sweep_file.read_text()
    sweep_file.write_text(text.replace("cells:\n", "cells:\n  - {scorer: tail, keep_ratio: 0.3, kv: q8_0}\n"))
    [left, *_] = make_plan(load_sweep(sweep_file)).remaining
    assert left.run.full
    assert len(left.run.cells) == 1, "the new cell stands first, and the full prefill takes its cache format"


def with_plugin(sweep: Path) -> Path:
    """The plugin beside a sweep file that has its scorer too."""
    path = sweep.with_name("mine_of_reuse.py")
    path.write_text(PLUGIN)
    added(sweep, "mine_of_reuse")
    sweep.write_text("plugins: mine_of_reuse.py\n" + sweep.read_text())
    return path


@pytest.fixture(scope="module")
def rows_with_plugin(
    tmp_path_factory: pytest.TempPathFactory, retriever_target: Path, retriever_drafter: Path
) -> bytes:
    """Those of the sweep with a scorer of a file beside it."""
    path = tmp_path_factory.mktemp("once") / "tiny.yaml"
    path.write_text(SWEEP.format(out=path.parent / "out", target=retriever_target, drafter=retriever_drafter))
    with_plugin(path)
    found = carried_out(path)
    forget()
    return found


@pytest.fixture
def plugin(sweep_file: Path, tmp_path: Path, rows_with_plugin: bytes) -> Iterator[Path]:
    """A sweep with a scorer of a file beside it, done once."""
    path, out = with_plugin(sweep_file), tmp_path / "out"
    out.mkdir()
    (out / "rows.jsonl").write_bytes(rows_with_plugin)
    yield path
    forget()


def forget() -> None:
    """What another process would not have: the plugin's module, and its name in the registry."""
    sys.modules.pop("sp_plugin_mine_of_reuse", None)
    SCORERS._classes.pop("mine_of_reuse", None)


def test_prose_in_a_plugin_redoes_nothing(plugin: Path, sweep_file: Path) -> None:
    text = PLUGIN.replace("# from 1 to 0", "# falling").replace("Prefers the beginning.", "Likes what comes first.")
    plugin.write_text("# mine\n\n" + text.replace('        """Falling scores."""\n', ""))
    assert make_plan(load_sweep(sweep_file)).remaining == []


def test_a_changed_statement_redoes_the_cells_of_its_file_alone(plugin: Path, sweep_file: Path) -> None:
    plugin.write_text(PLUGIN.replace("(1.0, 0.0, n", "(0.0, 1.0, n"))
    left = make_plan(load_sweep(sweep_file)).remaining
    assert [[cell.config["scorer"]["name"] for cell in job.run.cells] for job in left] == [["mine_of_reuse"] * 2] * 3


def test_runs_that_hashed_the_whole_file_stand(plugin: Path, sweep_file: Path) -> None:
    """As all did before prose was left out of the hash."""
    rows = sweep_file.parent / "out" / "rows.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "run":
            assert line["config"]["files"] == {plugin.name: code_sha256([plugin])}
            line["config"]["files"] = {plugin.name: files_sha256([plugin])}
        if "run" in line:
            line["run"] = f"old-{line['run']}"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = make_plan(load_sweep(sweep_file))
    assert plan.remaining == []
    assert all(run.startswith("old-") for job in plan.jobs for run in job.completes)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""Prefers the beginning."""', '"""Other words."""', True),
        ("  # from 1 to 0", "", True),
        ("frozen=True", "frozen = True", True),
        ("import numpy as np", "import numpy  as np\n", True),
        ("1.0, 0.0", "1.0, 0.5", False),
        ("import numpy as np", "import numpy.ma as np", False),
        ("        n = len", "        assert request\n        n = len", False),
    ],
)
def test_what_counts_of_a_file(old: str, new: str, same: bool, tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(PLUGIN)
    second.write_text(PLUGIN.replace(old, new))
    assert first.read_text() != second.read_text()
    assert (code_sha256([first]) == code_sha256([second])) is same


@pytest.mark.parametrize("rule", ["skip:0.05", "energy:0.5:1:16", "energy:0.9"])
def test_a_sparse_rule_with_a_point_is_no_file(rule: str) -> None:
    assert scorer_files({"cells": [{"scorer": {"name": "tail", "blocks": rule}}]}, "a study") == {}
    with pytest.raises(ConfigError, match="is not a file"):
        scorer_files({"cells": [{"scorer": {"name": "tail", "weights": "none.npz"}}]}, "a study")
