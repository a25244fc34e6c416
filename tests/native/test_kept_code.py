"""Machine code of compiled loops that is kept: found again, made anew where it is damaged, and never needed."""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int64
from pathlib import Path
from typing import Any

import pytest
from llvmlite import ir

from sp.native import compiled
from sp.native.code import FunctionBuilder
from sp.native.compiled import compile_module


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What LLVM has compiled."""
    found, work = list[bytes](), compiled._machine_code

    def counted(text: str, host: Any) -> bytes:
        found.append(work(text, host))
        return found[-1]

    monkeypatch.setattr(compiled, "_machine_code", counted)
    return found


def times(factor: int) -> int:
    """21 times a factor, by a function that is compiled, or found, for that."""

    def write(module: ir.Module) -> None:
        code = FunctionBuilder(module, "times", 1, result=True)
        code.end(code.arguments[0] * factor)

    result: int = CFUNCTYPE(c_int64, c_int64)(compile_module(write).addresses["times"])(21)
    return result


def test_what_was_compiled_is_found_again(made: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    assert [times(2), times(2), times(3), times(2)] == [42, 42, 63, 42]
    assert len(made) == 2
    assert len(list((tmp_path / "cache" / "native").iterdir())) == 2


@pytest.mark.parametrize(
    "spoil",
    [lambda raw: b"", lambda raw: raw[:-1], lambda raw: raw[:99] + bytes([raw[99] ^ 1]) + raw[100:]],
    ids=["empty", "cut", "changed"],
)
def test_what_is_damaged_is_made_anew(
    spoil: Any, made: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path))
    assert times(2) == 42
    (path,) = (tmp_path / "native").iterdir()
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    assert times(2) == 42
    assert len(made) == 2
    assert path.read_bytes() == whole


def test_without_a_folder_each_is_compiled(made: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "file"))
    assert [times(2), times(2)] == [42, 42]
    assert len(made) == 2
