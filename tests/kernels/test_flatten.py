"""Includes are put in place once, and the compiler still knows which line came from where."""

from __future__ import annotations

import pytest

from sp.kernels import flatten as module
from sp.kernels.hashing import all_sources, kernel_hash


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (tmp_path / "include" / "b.cuh").write_text("  # pragma once\nint b;\n")
    (tmp_path / "k.cu").write_text('// kernel\n#include "a.cuh"\n#include <cuda_fp16.h>\n#include "b.cuh"\nint k;\n')
    monkeypatch.setattr(module, "CUDA", tmp_path)
    module.flatten.cache_clear()
    yield tmp_path
    module.flatten.cache_clear()


def test_every_line_keeps_its_file_and_number(cuda):
    where, number, seen = "", 0, {}
    for line in module.flatten("k.cu").splitlines():
        if line.startswith("#line "):
            _, start, name = line.split()
            where, number = name.strip('"'), int(start)
        else:
            seen[line] = (where, number)
            number += 1
    assert seen["int b;"] == ("include/b.cuh", 2)
    assert seen["int a;"] == ("include/a.cuh", 3)
    assert seen["#include <cuda_fp16.h>"] == ("k.cu", 3)
    assert seen["int k;"] == ("k.cu", 5)


def test_an_include_stands_once_and_no_pragma_is_left(cuda):
    text = module.flatten("k.cu")
    assert text.count("int b;") == 1
    assert "pragma" not in text


def test_a_missing_include_is_named(cuda):
    (cuda / "k.cu").write_text('#include "gone.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"gone\.cuh"):
        module.flatten("k.cu")


def test_the_hash_follows_the_include_and_the_set_not_the_order(cuda, monkeypatch):
    monkeypatch.setattr("sp.kernels.hashing.CUDA", cuda)
    (cuda / "m.cu").write_text("int m;\n")
    assert all_sources() == ("k.cu", "m.cu")
    before = kernel_hash(["k.cu", "m.cu"])
    assert kernel_hash(["m.cu", "k.cu", "k.cu"]) == before
    assert kernel_hash(["k.cu"]) != before
    (cuda / "include" / "b.cuh").write_text("int b2;\n")
    module.flatten.cache_clear()
    assert kernel_hash(["k.cu", "m.cu"]) != before
    assert len(before) == 16
