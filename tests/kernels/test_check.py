"""The compile check: what it reads from ptxas, what it calls worse, and that it finds planted faults."""

from __future__ import annotations

import json

import pytest

from sp.errors import ConfigError
from sp.kernels import flatten, nvrtc
from sp.kernels.launch import KernelSpec
from sp.kernels.manifest import kernels
from sp.kernels.tools import baseline, check
from sp.kernels.tools.baseline import Baseline
from sp.kernels.tools.resources import ARCHES, Resources, misfits, parse_log, warnings

LOG = """\
k.cu(3): warning #177-D: variable "x" was declared but never referenced
Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"
cuda_fp8.h(9): warning #1444-D: entity "double4" was declared deprecated
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 3.127 ms
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 380 bytes cmem[0]
"""


def test_the_log_is_read_entry_by_entry():
    assert parse_log(LOG) == {"first": Resources(10, 0, 0, 0), "second": Resources(128, 20, 16, 1024)}


def test_warnings_are_distinguished_from_remarks():
    first, second = warnings(LOG)
    assert "177-D" in first
    assert "C7510" in second


@pytest.mark.parametrize(
    ("need", "arch", "threads", "dynamic", "why"),
    [
        (Resources(128, 0, 0, 0), "80", 512, 0, ""),
        (Resources(129, 0, 0, 0), "80", 512, 0, "512 threads x 129 registers"),
        (Resources(32, 0, 0, 1024), "86", 128, 98 << 10, ""),
        (Resources(32, 0, 0, 1025), "86", 128, 98 << 10, "sm_86 has 101376"),
        (Resources(32, 0, 0, 0), "90a", 128, 227 << 10, ""),
        (Resources(32, 0, 0, 0), "120", 128, 227 << 10, "sm_120 has 101376"),
    ],
)
def test_kernels_that_no_gpu_could_launch_are_found(need, arch, threads, dynamic, why):
    reasons = misfits(need, arch, threads, dynamic)
    assert [why in text for text in reasons] == ([True] if why else [])


def test_worse_than_the_baseline():
    known = {"a": Resources(100, 0, 0, 0), "b": Resources(100, 8, 0, 0), "gone": Resources(1, 0, 0, 0)}
    rows = {"a": Resources(110, 0, 0, 0), "b": Resources(100, 8, 0, 0)}
    assert baseline.compare(rows, known) == ([], [])
    rows = {"a": Resources(111, 4, 0, 0), "b": Resources(90, 9, 0, 0), "new": Resources(9, 4, 0, 0)}
    problems, remarks = baseline.compare(rows, known)
    assert problems == [
        "a: 4 bytes of spills, 0 before",
        "a: 111 registers, 100 before",
        "b: 9 bytes of spills, 8 before",
        "new: 4 bytes of spills, 0 before",
    ]
    assert remarks == ["new: not in the baseline; add it with --update"]
    rows = {"a": Resources(100, 0, 16, 0), "new": Resources(9, 0, 416, 0)}
    assert baseline.compare(rows, known)[0] == [
        "a: 16 bytes of stack frame, of arrays or tables, 0 expected",
        "new: 416 bytes of stack frame, of arrays or tables, 0 expected",
    ]
    assert baseline.compare({"a": Resources(200, 0, 0, 0)}, None) == ([], [])


def test_a_baseline_keeps_other_compilers(tmp_path, monkeypatch):
    file, row = tmp_path / "data" / "needs.json", {"k A=1 sm_80": Resources(10, 0, 0, 4)}
    monkeypatch.setattr(baseline, "compiler", lambda: "12.9")
    assert baseline.read_baseline(file) is None
    baseline.write_baseline(file, Baseline(row, {"k A=1 sm_80": "abc"}))
    monkeypatch.setattr(baseline, "compiler", lambda: "13.5")
    assert baseline.read_baseline(file) is None
    baseline.write_baseline(file, Baseline({}, {}))
    assert json.loads(file.read_text()) == {"12.9": {"k A=1 sm_80": [10, 0, 0, 4, "abc"]}, "13.5": {}}
    monkeypatch.setattr(baseline, "compiler", lambda: "12.9")
    assert baseline.read_baseline(file) == (row, {"k A=1 sm_80": "abc"})


def test_a_row_without_a_hash_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline, "compiler", lambda: "13.5")
    unhashed = Baseline({"k sm_80": Resources(10, 0, 0, 4)}, {})
    baseline.write_baseline(tmp_path / "needs.json", unhashed)
    assert baseline.read_baseline(tmp_path / "needs.json") == unhashed


@pytest.mark.parametrize("text", ["", "[]", '{"13.5": 3}', '{"13.5": {"k": 3}}', '{"13.5": {"k": [1]}}'])
def test_a_broken_baseline_is_one_error(tmp_path, monkeypatch, text):
    monkeypatch.setattr(baseline, "compiler", lambda: "13.5")
    (tmp_path / "needs.json").write_text(text)
    with pytest.raises(ConfigError, match="baseline"):
        baseline.read_baseline(tmp_path / "needs.json")


def test_entries_of_one_source_share_a_compilation():
    both = [KernelSpec("k.cu", name, (), 32, ({"A": 1, "B": 2}, {"B": 2, "A": 3})) for name in ("x", "y")]
    jobs = check.plan([*both, KernelSpec("h.cu", "z", (), 128, arches="90a")])
    assert len(jobs) == 2 * (len(ARCHES) - 1) + 1
    assert {job.arch for job in jobs if job.source == "h.cu"} == {"90a"}
    assert all(len(job.entries) == 2 for job in jobs if job.source == "k.cu")
    assert check.row_name("x", jobs[0].defines, "80") == "x A=1 B=2 sm_80"


def test_variants_are_compiled_where_their_shared_memory_is():
    sizes = KernelSpec("k.cu", "x", (), 32, ({"KIB": 90}, {"KIB": 160}, {"KIB": 227}), smem=lambda d: d["KIB"] << 10)
    jobs = check.plan([sizes])
    assert {job.arch for job in jobs if job.defines == (("KIB", 160),)} == {"80", "90", "100"}
    assert {job.arch for job in jobs if job.defines == (("KIB", 227),)} == {"90", "100"}
    assert check.unserved([sizes]) == []
    large = KernelSpec("k.cu", "x", (), 32, smem=160 << 10)
    assert check.unserved([large], ["80", "86", "90a"]) == ["x (sm_86): no variant fits 99 KiB of shared memory"]
    hopper = KernelSpec("k.cu", "x", (), 32, smem=228 << 10, arches="90a")
    assert [text[:10] for text in check.unserved([hopper])] == ["x (sm_90a)"]


def test_every_source_of_a_spec_is_there_and_every_source_has_one():
    named = {kernel.source for kernel in kernels().values()}
    assert named == {path.name for path in flatten.CUDA.rglob("*.cu")}


def written(folder, monkeypatch, text):
    (folder / "k.cu").write_text(text)
    monkeypatch.setattr(flatten, "CUDA", folder)
    flatten.flatten.cache_clear()


def test_kernels_that_differ_from_the_baseline_are_compiled(tmp_path, monkeypatch):
    """Another text, another option or another entry; not another comment. Others are drawn, as many as asked for."""
    written(tmp_path, monkeypatch, "int a;  // first")
    spec = KernelSpec("k.cu", "x", (), 32, ({"A": 1}, {"A": 2}, {"A": 3}))
    jobs = check.plan([spec], ["80", "120"])
    rows = {name: Resources(1, 0, 0, 0) for job in jobs for name in check.names(job)}
    known = Baseline(rows, {name: check.job_hash(job) for job in jobs for name in check.names(job)})
    assert len(set(known.compiled.values())) == len(jobs) == 6
    assert check.differing(jobs, known, 0) == []
    assert len(check.differing(jobs, known, 2)) == 2
    assert len(check.differing(jobs, known, 99)) == 6
    with monkeypatch.context() as other:
        other.setattr(nvrtc, "debugging", lambda: True)
        assert check.differing(jobs, known, 0) == jobs
    written(tmp_path, monkeypatch, "\n// another\nint a;")
    assert check.differing(jobs, known, 0) == []
    both = [spec, KernelSpec("k.cu", "y", (), 32, ({"A": 2},))]
    assert [job.defines for job in check.differing(check.plan(both, ["80"]), known, 0)] == [(("A", 2),)]
    assert check.differing(jobs, Baseline(rows, {}), 0) == jobs
    written(tmp_path, monkeypatch, "int b;")
    assert check.differing(jobs, known, 0) == jobs
    flatten.flatten.cache_clear()


@pytest.mark.nvrtc
def test_a_check_of_what_changed_takes_the_rest_from_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    chosen, file = list(kernels("selftest").values()), tmp_path / "needs.json"
    first = check.check(chosen, ["80"], None)
    baseline.write_baseline(file, Baseline(first.rows, first.compiled))
    monkeypatch.setattr(check, "differing", lambda jobs, known: jobs[:1])
    again = check.check(chosen, ["80"], file, changed=True)
    assert (again.jobs, first.jobs) == (1, len(check.plan(chosen, ["80"])))
    assert again.rows == first.rows
    assert again.problems == again.remarks == []
    monkeypatch.undo()
    none = check.check(chosen, ["80"], tmp_path / "gone.json", changed=True)
    assert none.jobs == first.jobs


@pytest.mark.nvrtc
def test_planted_faults_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "include").mkdir()
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ __launch_bounds__(1024, 2) void spills(float* x) {\n'
        "  float v[64]; int unused;\n"
        "  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];\n"
        "  __syncthreads();\n"
        "  for (int i = 0; i < 64; ++i) for (int j = 0; j < 64; ++j) x[i * 64 + j] += v[i] * v[j];\n"
        "}\n"
    )
    monkeypatch.setattr(flatten, "CUDA", tmp_path)
    flatten.flatten.cache_clear()
    (job,) = check.plan([KernelSpec("k.cu", "spills", ("f32* x",), 1024)], ["80"])
    rows, complaints = check.compile_job(job)
    assert rows["spills sm_80"].spill > 0
    told = " ".join(text for _, text in complaints)
    assert "unused" in told
    (job,) = check.plan([KernelSpec("k.cu", "gone", (), 32)], ["80"])
    assert "no such entry" in check.compile_job(job)[1][-1][1]
    (tmp_path / "k.cu").write_text("int x = y;")
    flatten.flatten.cache_clear()
    assert "does not compile" in check.compile_job(job)[1][0][1]
    flatten.flatten.cache_clear()


@pytest.mark.nvrtc
def test_a_check_in_processes_reports_progress_and_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    done = []
    chosen = list(kernels("selftest").values())
    report = check.check(chosen, ["80", "90a"], tmp_path / "none.json", done.append, workers=2)
    assert sum(done) == len(check.plan(chosen, ["80", "90a"])) == 4
    assert set(report.rows) == set(report.dynamic)
    assert report.problems == []
    assert ".".join(map(str, nvrtc.version())) in report.remarks[0]
    assert check.check(chosen, ["80"], None).remarks == []


@pytest.mark.nvrtc
def test_unchanged_kernels_are_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    job = check.plan(kernels("selftest").values(), ["80"])[0]
    first = check.compile_job(job)
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *given, **more: pytest.fail("compiled again"))
    assert check.compile_job(job) == first
