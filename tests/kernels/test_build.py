"""Kernels that the cache lacks are compiled ahead, with one message and a progress bar."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.commands import common
from sp.kernels import jit, nvrtc
from sp.kernels.manifest import kernels
from sp.kernels.tools import build
from sp.kernels.tools.check import plan

pytestmark = pytest.mark.nvrtc


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list:  # type: ignore[type-arg]
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    return list(plan(kernels("selftest").values(), ["90"]))


def test_missing_is_what_has_no_cubin(jobs) -> None:  # type: ignore[no-untyped-def]
    assert build.missing(jobs) == jobs != []
    first = jobs[0]
    jit.keep(jit.cubin_path(first.source, nvrtc.compile_options(dict(first.defines), first.arch)), b"cubin")
    assert build.missing(jobs) == jobs[1:]


def test_the_first_run_says_what_it_compiles_and_the_next_is_silent(
    jobs,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = []

    def build_all(wanted, progress) -> None:  # type: ignore[no-untyped-def]
        for job in wanted:
            made.append(job)
            jit.keep(jit.cubin_path(job.source, nvrtc.compile_options(dict(job.defines), job.arch)), b"cubin")
            progress(1)

    monkeypatch.setattr("sp.kernels.tools.check.plan", lambda *_: jobs)
    monkeypatch.setattr("sp.kernels.device.require_device", lambda: (9, 0))
    monkeypatch.setattr("sp.kernels.tools.build.build_all", build_all)
    common.compile_kernels()
    assert made == jobs
    assert capsys.readouterr().err.startswith(f"sp: compiling {len(jobs)} kernels for this GPU, once")
    common.compile_kernels()
    assert made == jobs
    assert capsys.readouterr().err == ""
