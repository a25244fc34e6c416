"""Pools whose workers die: the run is tried again elsewhere, and given up after three times."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sp.errors import ConfigError
from sp.studies.sweep import executor
from sp.studies.sweep.executor import Outcome, RayPool, WorkerDied, run_here, run_on
from sp.studies.sweep.runs import Run


class FakePool:
    """Two workers; a run named in `deaths` takes its worker down so many times."""

    size = 2

    def __init__(self, deaths: dict[str, int]) -> None:
        self.deaths, self.started, self.dead = Counter(deaths), 0, set[int]()
        self.most = 0

    def start(self) -> int:
        self.started += 1
        return self.started

    def submit(self, worker: int, job: Any) -> tuple[int, str]:
        assert worker not in self.dead, "a dead worker was given work"
        return worker, job.label

    def first(self, running: list[tuple[int, str]]) -> tuple[int, str]:
        self.most = max(self.most, len(running))
        assert len({worker for worker, _ in running}) == len(running), "a worker was given two runs"
        return running[-1]

    def result(self, over: tuple[int, str]) -> Outcome:
        worker, label = over
        if self.deaths[label]:
            self.deaths[label] -= 1
            self.dead.add(worker)
            raise WorkerDied("gone")
        return Outcome([{"label": label}], 1.0)


def jobs(*names: str) -> list[Any]:
    return [SimpleNamespace(label=name) for name in names]


def test_every_run_ends_once_whatever_dies() -> None:
    pool = FakePool({"b": 1, "d": 2})
    found = {job.label: outcome for job, outcome in run_on(pool, jobs(*"abcde"))}
    assert {label: outcome.rows for label, outcome in found.items()} == {name: [{"label": name}] for name in "abcde"}
    assert pool.started == 2 + 3
    assert pool.most == 2


def test_a_run_that_kills_three_workers_is_given_up_and_the_others_go_on() -> None:
    found = {job.label: outcome for job, outcome in run_on(FakePool({"b": 9}), jobs(*"abc"))}
    assert found["b"].error == "its worker died 3 times (gone)"
    assert found["a"].error is found["c"].error is None


def test_no_more_workers_than_runs() -> None:
    pool = FakePool({})
    assert len(list(run_on(pool, jobs("a")))) == 1
    assert pool.started == 1
    assert list(run_on(FakePool({}), [])) == []


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(executor, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'sp-prefill\[ray\]'"):
        RayPool(lambda: None)  # type: ignore[arg-type, return-value]


class Mortal:
    """Kills its own process the first time it is given run "b"."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def run(self, job: Run) -> Outcome:
        import os
        import signal

        if job.label == "b" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome([{"label": job.label}], 1.0)


@pytest.mark.slow
def test_ray_replaces_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        pool, mark = RayPool(lambda: Mortal(tmp_path / "mark")), tmp_path / "mark"
        found = {job.label: outcome for job, outcome in run_on(pool, jobs(*"abc"))}
    finally:
        ray.shutdown()
    assert mark.exists()
    assert {label: outcome.rows for label, outcome in found.items()} == {name: [{"label": name}] for name in "abc"}


def test_runs_here_come_in_order() -> None:
    worker = SimpleNamespace(run=lambda job: Outcome([{"label": job.label}]))
    assert [outcome.rows[0]["label"] for _, outcome in run_here(worker, jobs(*"abc"))] == list("abc")
