"""Records on disk, and whether those committed are of today's kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp.bench import record, timing
from sp.errors import ConfigError
from sp.kernels.hashing import kernel_hash
from sp.kernels.machine import cpu_facts, machine_slug

RESULTS = Path(__file__).parents[2] / "results"
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


def test_spread_of_one_sample():
    assert timing.spread([3.0]) == (3.0, 3.0, 3.0)


def measured() -> list[Path]:
    """Committed files of records that name their kernels."""
    files = sorted(RESULTS.rglob("*.jsonl"))
    return [path for path in files if "kernel_hash" in json.loads(path.read_text().partition("\n")[0] or "{}")]


@pytest.mark.parametrize("path", measured(), ids=lambda path: str(path.relative_to(RESULTS)))
def test_committed_records_are_of_todays_kernels(path):
    newest = record.newest(path)
    assert all(set(record.FIELDS) <= set(r) for r in newest)
    stale = [json.dumps(r["config"]) for r in newest if not record.is_current(r)]
    if stale:
        pytest.xfail(f"{len(stale)} of {len(newest)} were measured with other kernels: {', '.join(stale)[:300]}")
