"""What `tests/gpu --record` writes: a record a file of tests, and none of a file that ran in part."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp.bench.record import read

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def conftest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(GPU))
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_has_its_record_unless_only_part_of_it_ran(conftest, tmp_path, monkeypatch) -> None:
    from sp.bench import record

    monkeypatch.setattr(record, "environment", lambda: {"gpu": "Card", "driver": "1", "nvrtc": "1", "cupy": "1"})
    recorder = conftest.Recorder(tmp_path)
    recorder.pytest_configure(SimpleNamespace(args=[str(GPU), f"{GPU}/test_c.py::test_one"]))
    recorder.pytest_deselected([SimpleNamespace(path=GPU / "test_d.py")])

    def tell(path: Path, when: str, outcome: str, name: str = "t") -> None:
        report = SimpleNamespace(
            fspath=str(path), when=when, outcome=outcome, failed=outcome == "failed", nodeid=f"{path.name}::{name}"
        )
        recorder.pytest_runtest_logreport(report)

    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        for when in ("setup", "call", "teardown"):
            tell(GPU / name, when, "passed")
    tell(GPU / "test_b.py", "call", "failed", "u")
    tell(GPU / "test_e.py", "setup", "skipped")
    tell(GPU.parent / "test_other.py", "call", "passed")
    said: list[str] = []
    recorder.pytest_terminal_summary(SimpleNamespace(write_line=said.append))
    (file,) = tmp_path.rglob("gpu_tests.jsonl")
    made = {r["config"]["tests"][0]: (r["metrics"], r["samples"]) for r in read(file)}
    assert made == {
        "test_a.py": ({"passed": 1, "failed": 0, "skipped": 0}, []),
        "test_b.py": ({"passed": 1, "failed": 1, "skipped": 0}, ["test_b.py::u"]),
    }
    assert sum("only some" in line for line in said) == 2
