"""Compilation with no GPU: options reach the compiler, cubins are cached by content. Needs CuPy and NVRTC."""

from __future__ import annotations

import struct

import pytest
from static_checks import check_statically

from sp.errors import DeviceError
from sp.kernels import jit, nvrtc
from sp.kernels.flatten import flatten
from sp.kernels.specs.selftest import HOPPER, SCALARS

PROBE = """
extern "C" __global__ void probe(float* x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    x[0] = VALUE;
#else
    x[0] = x[1] * x[2];
#endif
}
"""

pytestmark = pytest.mark.nvrtc


def compiled(arch, defines=None):
    return nvrtc.compile_cubin(PROBE, "probe.cu", nvrtc.compile_options(defines or {"VALUE": 1}, arch), report=True)


def test_sm_90a_is_what_is_compiled():
    assert compiled("90a").cubin != compiled("90a", {"VALUE": 2}).cubin
    assert compiled("90").cubin == compiled("90", {"VALUE": 2}).cubin


def test_a_cubin_ends_with_its_headers():
    """As nvdisasm wants it; CuPy leaves the last byte out."""
    cubin = compiled("90").cubin
    programs, sections = struct.unpack_from("<QQ", cubin, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", cubin, 54)
    assert len(cubin) == max(programs + program_size * program_count, sections + section_size * section_count)


def test_the_report_has_no_more_than_ptxas_says():
    log = compiled("80").log
    assert "Compiling entry function 'probe'" in log
    assert "warning" not in log


def test_a_broken_source_is_one_error_with_file_and_line():
    with pytest.raises(DeviceError, match=r"selftest\.cu does not compile .*sm_80(.|\n)*k\.cuh\(7\): error"):
        nvrtc.compile_cubin('#line 7 "k.cuh"\nint x = y;\n', "selftest.cu", nvrtc.compile_options({}, "80"))


def test_cubins_are_kept_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    options = nvrtc.compile_options({}, "80")
    path = jit.build(SCALARS.source, options)
    assert path.parent == tmp_path / "kernels"
    assert path.read_bytes()[:4] == b"\x7fELF"
    stamp = path.stat().st_mtime_ns
    assert jit.build(SCALARS.source, options) == path
    assert path.stat().st_mtime_ns == stamp
    assert jit.cubin_path(SCALARS.source, nvrtc.compile_options({}, "90")) != path
    monkeypatch.setattr(jit, "flatten", lambda source: flatten(source) + "// edited\n")
    assert jit.cubin_path(SCALARS.source, options) != path
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unwritable_cache_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="SP_CACHE_DIR"):
        jit.build(SCALARS.source, nvrtc.compile_options({}, "80"))


def test_hopper_helpers_compile():
    options = nvrtc.compile_options({}, "90a")
    assert nvrtc.compile_cubin(flatten(HOPPER.source), HOPPER.source, options).cubin


def test_an_old_compiler_is_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "version", lambda: (11, 8))
    with pytest.raises(DeviceError, match="too old"):
        nvrtc.compile_cubin(PROBE, "probe.cu", nvrtc.compile_options({}, "80"))


def test_a_missing_compiler_is_one_error(monkeypatch):
    class Gone:
        @staticmethod
        def getVersion():  # noqa: N802
            raise ImportError("libnvrtc.so.13: cannot open shared object file")

    stub = type("cupy", (), {"cuda": type("cuda", (), {"nvrtc": Gone})})
    monkeypatch.setattr(nvrtc, "import_cupy", lambda: stub)
    nvrtc.version.cache_clear()
    with pytest.raises(DeviceError, match=r"\(NVRTC\) cannot be loaded.*pip install"):
        nvrtc.version()
    monkeypatch.undo()
    nvrtc.version.cache_clear()


def test_static_assertions_are_decided_without_generating_code():
    check_statically("static_assert(VALUE == 2);", "probe.cu", {"VALUE": 2}, "80")
    with pytest.raises(DeviceError, match=r"static assertion failed"):
        check_statically("static_assert(VALUE == 2);", "probe.cu", {"VALUE": 3}, "80")
