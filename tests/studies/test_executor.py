"""Pools whose workers die: the run is tried again elsewhere, and given up after three times."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from sp.studies.sweep.executor import Outcome, WorkerDied, run_here, run_on


class FakePool:
    """Two workers; a run named in `deaths` takes its worker down so many times."""

    size = 2

    def __init__(self, deaths: dict[str, int]) -> None:
        self.deaths, self.started, self.dead = Counter(deaths), 0, set[int]()
        self.most, self.closed = 0, False

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

    def close(self) -> None:
        self.closed = True

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
    assert pool.closed


def test_workers_end_with_whoever_reads_the_runs() -> None:
    pool = FakePool({})
    runs = run_on(pool, jobs(*"abc"))
    next(runs)
    assert not pool.closed
    runs.close()  # as an interruption does
    assert pool.closed


def test_a_run_goes_to_a_worker_that_has_worked_rather_than_to_a_new_one() -> None:
    """A new one may never find a place on a cluster that has lost a host."""
    pool = FakePool({"b": 1})
    pool.first = lambda running: running[0]  # type: ignore[method-assign]
    found = {job.label: outcome for job, outcome in run_on(pool, jobs(*"ab"))}
    assert found["b"].rows == [{"label": "b"}]
    assert pool.started == 2, "the one that was done with a took b"


def test_a_run_that_kills_three_workers_is_given_up_and_the_others_go_on() -> None:
    found = {job.label: outcome for job, outcome in run_on(FakePool({"b": 9}), jobs(*"abc"))}
    assert found["b"].error == "its worker died 3 times (gone)"
    assert found["a"].error is found["c"].error is None


def test_no_more_workers_than_runs() -> None:
    pool = FakePool({})
    assert len(list(run_on(pool, jobs("a")))) == 1
    assert pool.started == 1
    assert list(run_on(FakePool({}), [])) == []


def test_runs_here_come_in_order() -> None:
    worker = SimpleNamespace(run=lambda job: Outcome([{"label": job.label}]))
    assert [outcome.rows[0]["label"] for _, outcome in run_here(worker, jobs(*"abc"))] == list("abc")
