"""Records on disk, and whether those committed are of today's kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp.bench import record, timing
from sp.bench.record import BUDGET, check_budget, failed_tests, measured_files, old_keys, read_budget, restate
from sp.errors import ConfigError
from sp.kernels.hashing import kernel_hash
from sp.kernels.machine import cpu_facts, machine_slug

ROOT = Path(__file__).parents[2]
RESULTS, GPU_TESTS = ROOT / "results", ROOT / "tests" / "gpu"
FACTS = {"gpu": "NVIDIA H200", "driver": "580.1", "clocks_mhz": {}, "nvrtc": "13.0", "cupy": "14.2.0"}
SOURCE = "selftest.cu"


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(record, "environment", lambda: FACTS)
    return record.make_record("matmul", {"m": 1}, {"ms": 2.0}, [2.0, 2.1], [SOURCE, SOURCE])


def test_a_record_has_every_field_and_is_read_back(made, tmp_path):
    assert set(record.FIELDS) <= set(made)
    assert made["kernels"] == [SOURCE]
    path = record.append(made, tmp_path)
    record.append({**made, "metrics": {"ms": 1.0}}, tmp_path)
    record.append({**made, "config": {"m": 2}}, tmp_path)
    assert path == tmp_path / "nvidia-h200" / "matmul.jsonl"
    assert [r["metrics"]["ms"] for r in record.read(path)] == [2.0, 1.0, 2.0]
    assert [(r["config"]["m"], r["metrics"]["ms"]) for r in record.newest(path)] == [(1, 1.0), (2, 2.0)]


def test_a_record_knows_whether_its_kernels_are_todays(made, monkeypatch):
    assert record.is_current(made)
    assert not record.is_current({**made, "kernel_hash": "0" * 16})
    assert not record.is_current({**made, "kernels": ["gone.cu"]})


def test_launched_sources_are_the_default(monkeypatch):
    monkeypatch.setattr(record, "environment", lambda: FACTS)
    monkeypatch.setattr(record, "launched_sources", lambda: (SOURCE,))
    assert record.make_record("x", {}, {}, [])["kernel_hash"] == kernel_hash([SOURCE])


def test_the_commit_can_be_named(monkeypatch):
    monkeypatch.setenv("SP_COMMIT", "abc")
    assert record.commit() == "abc"


def test_a_record_of_a_processor_goes_into_its_own_folder(tmp_path):
    made = record.make_record("ttft", {}, {"note": "a line separator: \u2028"}, [1.0], [], device="cpu")
    assert set(record.FIELDS) <= set(made)
    assert made["gpu"] is None
    path = record.append(made, tmp_path)
    assert path.parent.name == machine_slug(cpu_facts())
    assert list(record.read(path)) == [made]


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"bench": 1}\n{\n')
    with pytest.raises(ConfigError, match="line 2"):
        list(record.read(tmp_path / "x.jsonl"))
    with pytest.raises(ConfigError, match="cannot read"):
        list(record.read(tmp_path / "none.jsonl"))


def test_quartiles_of_one_sample():
    assert timing.quartiles([3.0]) == (3.0, 3.0, 3.0)


FILES = measured_files(RESULTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_committed_records_are_of_todays_kernels_but_for_those_stated(path):
    assert all(set(record.FIELDS) <= set(r) for r in record.newest(path))
    check_budget(RESULTS, path, GPU_TESTS)


def test_what_is_stated_of_old_records_is_of_files_there_are_and_says_why():
    stated = read_budget(RESULTS)
    assert set(stated) <= {path.relative_to(RESULTS).as_posix() for path in FILES}
    assert all(
        entry.keys() <= {"old", "why", "failed"} and entry["old"] > 0 and entry["why"] for entry in stated.values()
    )


def test_more_old_records_than_stated_fail_and_so_do_fewer(made, tmp_path):
    path = record.append(made, tmp_path)
    record.append({**made, "config": {"m": 2}, "kernel_hash": "0" * 16}, tmp_path)
    for stated, fine in ((0, False), (1, True), (2, False)):
        name = path.relative_to(tmp_path).as_posix()
        (tmp_path / BUDGET).write_text(json.dumps({name: {"old": stated, "why": "a test"}} if stated else {}))
        if fine:
            check_budget(tmp_path, path, GPU_TESTS)
        else:
            with pytest.raises(ConfigError, match=f"1 records .* states {stated}"):
                check_budget(tmp_path, path, GPU_TESTS)
    (tmp_path / BUDGET).unlink()
    assert restate(tmp_path, GPU_TESTS, "why") == {name: {"old": 1, "why": "why"}}
    record.append({**made, "config": {"m": 2}}, tmp_path)
    assert restate(tmp_path, GPU_TESTS, "why") == read_budget(tmp_path) == {}


def test_gpu_tests_without_a_record_count_as_old_and_those_gone_do_not(made, tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("test_a.py", "test_b.py", "other.py"):
        (tests / name).touch()
    path = record.append({**made, "bench": "gpu_tests", "config": {"tests": ["test_b.py"]}}, tmp_path)
    record.append({**made, "bench": "gpu_tests", "config": {"tests": ["test_c.py"]}, "kernel_hash": "0"}, tmp_path)
    assert old_keys(path, tests) == ["test_a.py"]


def test_committed_gpu_tests_passed_but_for_those_stated():
    files = [path for path in FILES if path.stem == "gpu_tests"]
    assert files
    for path in files:
        stated = read_budget(RESULTS).get(path.relative_to(RESULTS).as_posix(), {}).get("failed", {})
        assert sorted(failed_tests(path)) == sorted(stated)
