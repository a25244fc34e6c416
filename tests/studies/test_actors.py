"""Sweeps on actors of Ray: the rows of a local sweep, whatever is killed, and one line for a cluster without room."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sp import cli, cluster
from sp.errors import ConfigError
from sp.studies.sweep import executor
from sp.studies.sweep.conduct import carry_out, make_plan
from sp.studies.sweep.executor import ActorPool, Outcome, RunWorker, run_on
from sp.studies.sweep.store import read_results
from sp.studies.sweep.sweep import load_sweep

FEW = ["tasks.per_run=1", "cells.scorer=random", "cells.keep_ratio=0.4"]


@pytest.fixture(scope="module")
def two() -> Iterator[cluster.Cluster]:
    """A cluster of two CPUs, open for all tests here; what they `join` is this one."""
    pytest.importorskip("ray")
    found = cluster.join("test", workers=2)
    yield replace(found, opened=False)
    found.close()


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "sweep", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Rows without times, in the order of their examples."""
    found = read_results([folder / "rows.jsonl"]).all_rows()
    plain = [{key: value for key, value in row.items() if not key.endswith("_s")} for row in found]
    return sorted(plain, key=lambda row: (row["example"], row["cell"]))


def below(pid: int) -> list[str]:
    """Commands of the processes that descend from one."""
    parents, found = dict[int, int](), dict[int, str]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    inside = {pid}
    while more := {one for one, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return [found[one] for one in inside - {pid} if one in found]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_a_cluster_of_our_own_starts_no_worker_that_nobody_asked_for(two: cluster.Cluster) -> None:
    time.sleep(1.0)  # a process that Ray starts ahead is there at once, and takes a second of a core
    commands = below(os.getpid())
    assert any("raylet" in one for one in commands)
    assert not [one for one in commands if "ray::IDLE" in one or "default_worker.py" in one.partition(" --")[0]]


@pytest.mark.slow
def test_actors_find_what_this_process_finds_and_do_nothing_twice(
    two: cluster.Cluster,
    sweep_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = [f"--set={one}" for one in FEW]
    assert call(monkeypatch, sweep_file, *few, "-o", tmp_path / "local") == 0
    capsys.readouterr()
    for done in (0, 6):
        on = ("--executor", "ray", "--actors", "2", "--json")
        assert call(monkeypatch, sweep_file, *few, "-o", tmp_path / "ray", *on) == 0
        shown = capsys.readouterr()
        summary = json.loads(shown.out)
        assert (summary["runs"], summary["already_done"], summary["failed"]) == (6, done, [])
        assert ("6 of 6 runs remain; about" in shown.err and "on 2 actors" in shown.err) == (not done)
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")
    lines = (tmp_path / "ray" / "rows.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["kind"] == "run" for line in lines) == 6


@pytest.mark.slow
def test_a_killed_actor_costs_no_finished_run_and_the_study_ends(
    two: cluster.Cluster, sweep_file: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()

    def make() -> RunWorker:
        (pids / str(os.getpid())).touch()
        return RunWorker("cpu")

    plan = make_plan(load_sweep(sweep_file, FEW, tmp_path / "out"))
    pool, killed, on_disk = ActorPool(two, make, actors=2), None, set[str]()
    for job, outcome in carry_out(plan, pool=pool):
        assert outcome.error is None
        now = set(read_results([plan.path]).runs)
        assert now == on_disk | {job.hash}, "a run is on the disk as soon as it is done, and stays there"
        on_disk = now
        if killed is None:
            killed = int(sorted(path.name for path in pids.iterdir())[0])
            os.kill(killed, signal.SIGKILL)
    assert on_disk == {job.hash for job in plan.jobs}
    assert len(list(pids.iterdir())) == 3, "one was started in its place"
    assert not make_plan(load_sweep(sweep_file, FEW, tmp_path / "out")).remaining


def deadly() -> Callable[[], Any]:
    """Makes a worker that kills its process at run "b", and meets at "c" a fault that nobody foresaw."""

    class Deadly:  # within a function, so that it goes to actors by value
        def run(self, job: Any) -> Outcome:
            if job.label == "b":
                os.kill(os.getpid(), signal.SIGKILL)
            if job.label == "c":
                raise ZeroDivisionError("no such luck")
            return Outcome([{"label": job.label}], 1.0)

    return Deadly


@pytest.mark.slow
def test_what_kills_every_actor_is_given_up_in_one_line(two: cluster.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "ATTEMPTS", 2)  # each costs an actor; of three tell the tests of other workers
    pool = ActorPool(two, deadly(), actors=2)
    found = {job.label: outcome for job, outcome in run_on(pool, [SimpleNamespace(label=one) for one in "abcd"])}  # type: ignore[misc]
    assert [found[one].rows for one in "ad"] == [[{"label": one}] for one in "ad"]
    assert found["b"].error is not None
    assert found["b"].error.startswith("its worker died 2 times (ActorDiedError: ")
    assert found["c"].error == "its worker died 2 times (ZeroDivisionError: no such luck)"
    assert all("\n" not in str(outcome.error) for outcome in found.values())


@pytest.mark.slow
def test_no_room_is_told_in_one_line_and_waited_for_but_so_long(
    two: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = int(two.ray.cluster_resources()["CPU"])
    assert two.free("CPU", total) == total, "what earlier tests held has come back"
    few = total + 1
    monkeypatch.setattr(cluster, "RETURN_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=rf"has {few - 1} CPUs free, and each actor needs one; .*lower --actors"):
        ActorPool(two, deadly(), actors=few)
    with pytest.raises(ConfigError, match=r"has no GPU free"):
        ActorPool(two, deadly(), "GPU")
    monkeypatch.setattr(executor, "START_SECONDS", 1.0)
    monkeypatch.setattr(executor, "LOOK_SECONDS", 0.2)
    pool = ActorPool(two, deadly(), actors=few - 1)
    pool._actor = pool._actor.options(num_cpus=few)  # as if a host had been lost meanwhile
    [(_, outcome)] = run_on(pool, [SimpleNamespace(label="a")])  # type: ignore[list-item]
    assert outcome.error == "its worker died 3 times (no host had a place for it in 1 s)"


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(cluster, "import_module", missing)
    with pytest.raises(ConfigError, match=r"^--executor ray needs the package ray; pip install 'sp-prefill\[ray\]'$"):
        cluster.join("--executor ray")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--actors", "2"], "--actors is for a cluster; add --executor ray"),
        (["--address", "a:1"], "--address is for a cluster; add --executor ray"),
        (["--executor", "ray", "--address", "here"], "HOST:PORT of its head, e.g. 10.0.0.1:6379, not 'here'"),
        (["--executor", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1: Connection refused"),
    ],
)
def test_wrong_clusters_are_one_line_and_status_2(
    sweep_file: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, sweep_file, *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
