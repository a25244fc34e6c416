"""`sp kernels`: what it prints, and the status it ends with."""

from __future__ import annotations

import json

import pytest

from sp import cli
from sp.kernels.manifest import kernels
from sp.kernels.tools import check as checks
from sp.kernels.tools.resources import Resources


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["sp", "kernels", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr()


def test_list(monkeypatch, capsys):
    status, said = run(monkeypatch, capsys, "list")
    assert status == 0
    assert all(name in said.out for name in kernels())
    status, said = run(monkeypatch, capsys, "list", "--family", "selftest", "--json")
    (scalars, product, hopper) = json.loads(said.out)["kernels"]
    assert scalars["args"][0] == "u64* out"
    assert product["variants"][0] == {"F16": 0, "TRANS": 0}
    assert (hopper["family"], hopper["arches"]) == ("selftest", "90a")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "--family", "selftests"], "did you mean 'selftest'"),
        (["check", "--arch", "81"], "unknown architecture '81'"),
        (["check", "--update", "--arch", "80"], "omit --arch"),
        (["check", "--arch", "80", "--family", "x"], "unknown family"),
        (["bench", "--repeats", "1"], "repeats"),
    ],
)
def test_bad_input_is_one_line_and_status_2(monkeypatch, capsys, arguments, complaint):
    status, said = run(monkeypatch, capsys, *arguments)
    assert status == 2
    assert complaint in said.err
    assert said.err.count("\n") == 1


@pytest.fixture
def report(monkeypatch, tmp_path):
    """A check of two GPUs that finds what the test wants."""
    rows = {"k A=1 sm_80": Resources(40, 0, 0, 16), "k A=1 sm_90": Resources(44, 8, 0, 16)}
    made = checks.Report(rows, dict.fromkeys(rows, 1024), [], [], {"k A=1 sm_80": "abc"}, 2)
    monkeypatch.setattr(checks, "check", lambda *given, changed: made)
    return made


@pytest.mark.nvrtc
def test_check_prints_needs_and_passes(monkeypatch, capsys, report):
    status, said = run(monkeypatch, capsys, "check")
    assert status == 0
    assert "44 +8" in said.out
    assert "1,040" in said.out
    assert "2 compilations" in said.out
    assert "no problems" in said.out


@pytest.mark.nvrtc
def test_check_fails_on_a_problem(monkeypatch, capsys, report):
    report.problems.append("k A=1 sm_90: 8 bytes of spills, 0 before")
    status, said = run(monkeypatch, capsys, "check")
    assert status == 1
    assert "fail k A=1 sm_90: 8 bytes of spills" in said.out
    status, said = run(monkeypatch, capsys, "check", "--json")
    told = json.loads(said.out)
    assert status == 1
    assert told["problems"] == report.problems
    assert told["rows"]["k A=1 sm_80"] == {"registers": 40, "spill": 0, "stack": 0, "shared": 16, "dynamic": 1024}


@pytest.mark.nvrtc
def test_update_writes_the_baseline(monkeypatch, capsys, report, tmp_path):
    status, _ = run(monkeypatch, capsys, "check", "--update", "--baseline", str(tmp_path / "needs.json"))
    assert status == 0
    (known,) = json.loads((tmp_path / "needs.json").read_text()).values()
    assert known == {"k A=1 sm_80": [40, 0, 0, 16, "abc"], "k A=1 sm_90": [44, 8, 0, 16]}


@pytest.fixture
def timed(monkeypatch):
    """A GPU on which every kernel takes 2 ms."""
    from sp.bench import cases
    from sp.kernels import device

    def run_cases(only, repeats):
        metrics = {"ms": 2.0, "ms_low": 1.9, "ms_high": 2.1, "gb_s": 4000.4, "tflops": 0.0}
        config = {"op": only or "copy", "rows": repeats, "path": "portable"}
        yield {"bench": "rows", "config": config, "metrics": metrics, "gpu": "NVIDIA H200"}

    monkeypatch.setattr(device, "require_device", lambda: (9, 0))
    monkeypatch.setattr(cases, "run_cases", run_cases)


def test_bench_prints_a_line_a_case_and_records_it(monkeypatch, capsys, timed, tmp_path):
    status, said = run(monkeypatch, capsys, "bench", "--repeats", "7", "--record", str(tmp_path))
    assert status == 0
    assert "op=copy rows=7" in said.out
    assert "4000" in said.out
    (line,) = (tmp_path / "nvidia-h200" / "rows.jsonl").read_text().splitlines()
    assert json.loads(line)["metrics"]["ms"] == 2.0
    status, said = run(monkeypatch, capsys, "bench", "--family", "norms", "--json")
    assert json.loads(said.out)["records"][0]["config"]["op"] == "norms"


@pytest.mark.nvrtc
def test_build_says_how_much_was_compiled(monkeypatch, capsys, tmp_path):
    from sp.kernels import device

    monkeypatch.setattr(device, "require_device", lambda: (9, 0))
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    for compiled in (4, 0):
        status, said = run(monkeypatch, capsys, "build", "--family", "selftest")
        assert status == 0
        assert f"4 modules in {tmp_path / 'kernels'}, {compiled} compiled now" in said.out
    assert len(list((tmp_path / "kernels").glob("*.cubin"))) == 4
