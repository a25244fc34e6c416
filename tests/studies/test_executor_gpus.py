"""Runs over several GPUs: each worker sees one, no run is done twice, and a dead worker costs one run's time."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sp import cli
from sp.errors import ConfigError
from sp.studies.sweep.executor import GPUPool, Outcome, read_gpus, run_on
from sp.studies.sweep.store import read_results


@dataclass(frozen=True)
class Recorder:
    """Says which GPU it saw; takes its process down the first time it is given run "b", with `mark` set."""

    mark: Path | None = None

    def run(self, job: Any) -> Outcome:
        if self.mark and job.label == "b" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome([{"label": job.label, "card": os.environ["CUDA_VISIBLE_DEVICES"], "process": os.getpid()}], 1.0)


@dataclass(frozen=True)
class Maker:
    mark: Path | None = None

    def __call__(self) -> Recorder:
        return Recorder(self.mark)


def rows(pool: GPUPool, *labels: str) -> list[dict[str, Any]]:
    return [outcome.rows[0] for _, outcome in run_on(pool, [SimpleNamespace(label=one) for one in labels])]


def test_a_process_a_gpu_whatever_dies(tmp_path: Path) -> None:
    found = rows(GPUPool(["3", "5"], Maker(tmp_path / "mark")), *"abcd")
    assert (tmp_path / "mark").exists()
    assert sorted(row["label"] for row in found) == list("abcd")
    assert {row["card"] for row in found} <= {"3", "5"}
    gpus = {row["process"]: row["card"] for row in found}
    assert all(gpus[row["process"]] == row["card"] for row in found)
    assert os.getpid() not in gpus
    for process in gpus:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_gpu_whose_worker_died_is_given_to_the_next(tmp_path: Path) -> None:
    found = rows(GPUPool(["3"], Maker(tmp_path / "mark")), *"bc")
    assert [(row["label"], row["card"]) for row in found] == [("b", "3"), ("c", "3")]


def test_workers_end_with_an_interruption() -> None:
    pool = GPUPool(["0"], Maker())
    runs = run_on(pool, [SimpleNamespace(label=one) for one in "ab"])
    _, outcome = next(runs)
    runs.close()  # as an exception in whoever reads them does
    with pytest.raises(ProcessLookupError):
        os.kill(outcome.rows[0]["process"], 0)


@pytest.mark.parametrize(
    ("text", "seen", "message"),
    [
        ("0,,1", None, "--devices takes numbers of GPUs"),
        ("0;rm", None, "--devices takes numbers of GPUs"),
        ("2", "4,6", "there is no GPU 2, as CUDA_VISIBLE_DEVICES has 2; use a lower number"),
        ("0", "", "CUDA_VISIBLE_DEVICES has 0"),
    ],
)
def test_wrong_gpus_are_told(text: str, seen: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_gpus(text, {} if seen is None else {"CUDA_VISIBLE_DEVICES": seen})


@pytest.mark.slow
def test_two_workers_do_a_sweep_once(
    sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # no GPU is touched: the sweep says device: cpu
    few = ["tasks.examples=3", "tasks.per_run=1", "cells.scorer=random", "cells.keep_ratio=0.4"]
    command = ["sp", "sweep", str(sweep_file), "--devices", "0,1", "--json", *(f"--set={one}" for one in few)]
    done = []
    for _ in range(2):
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code in (0, None)
        shown = capsys.readouterr()
        summary = json.loads(shown.out)
        done.append((summary["already_done"], summary["failed"]))
        told = "3 of 3 runs remain; about" in shown.err and "on 2 devices, a guess from" in shown.err
        assert told == (len(done) == 1)
    assert done == [(0, []), (3, [])]
    results = read_results([tmp_path / "out" / "rows.jsonl"])
    assert len(results.runs) == 3
    assert len({(row["example"], row["cell"]) for row in results.all_rows()}) == 3 * 2
    assert sum(1 for _ in results.all_rows()) == 3 * 2
    lines = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["kind"] == "run" for line in lines) == 3, "no run was done twice"
