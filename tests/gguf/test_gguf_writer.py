"""Input that the writer refuses; a refusal leaves no file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.errors import ConfigError, GGUFError
from sp.gguf import GGUFWriter
from sp.gguf.writer import encode_key_value
from sp.quant import F32, Q8_0

ZEROS = np.zeros(16, np.uint8)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("", 1, "must be 1 to"),
        ("a\0", 1, "printable"),
        ("x" * 65536, 1, "must be 1 to"),
        ("k", None, "no type for NoneType"),
        ("k", {"a": 1}, "no type for dict"),
        ("k", 1 << 64, "does not fit in 64 bits"),
        ("k", [], "empty list"),
        ("k", [1, "a"], "mixes types"),
        ("k", ["a", 1], "not every element is a str"),
        ("k", [[1]], "mixes types"),
        ("k", np.zeros((2, 2), np.int32), "2 dimensions"),
        ("k", np.zeros(2, np.complex64), "complex64"),
        ("k", "\ud800", "UTF-8"),
        ("split.no", 70000, "not a uint16"),
        ("qwen3.rope.freq_base", "fast", "not a float32"),
        ("tokenizer.ggml.token_type", [1 << 40], "not every element is a int32"),
        ("tokenizer.ggml.tokens", "abc", "cannot write key"),
    ],
)
def test_metadata_that_gguf_cannot_hold(key: str, value: Any, message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        encode_key_value(key, value)


@pytest.mark.parametrize("alignment", [0, -32, 3, 1 << 21, 32.0, "32"])
def test_bad_alignment(tmp_path: Path, alignment: Any) -> None:
    with pytest.raises(GGUFError, match="power of two"):
        GGUFWriter(tmp_path / "m.gguf", {"general.alignment": alignment})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("", (4,), "tensor name"),
        ("x" * 64, (4,), "tensor name"),
        ("ü" * 32, (4,), "tensor name"),
        ("a\n", (4,), "tensor name"),
        ("w", (4,), "used already"),
        ("v", (), "shape"),
        ("v", (0,), "shape"),
        ("v", (1 << 31,), "shape"),
        ("v", (1, 1, 1, 1, 4), "shape"),
        ("v", (5,), "needs 20 bytes, got 16"),
    ],
)
def test_bad_tensors(tmp_path: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", {})
    writer.add("w", (4,), F32, ZEROS)
    with pytest.raises(GGUFError, match=message):
        writer.add(name, shape, F32, ZEROS)


def test_data_must_be_packed(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", {})
    with pytest.raises(GGUFError, match="is float32, not uint8; encode it first"):
        writer.add("w", (4,), F32, np.zeros(4, np.float32))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="multiple of the block"):
        writer.add("w", (33,), Q8_0, ZEROS)
    writer.add("w", (4,), F32, lambda: [b"0123456789abcdef"])  # type: ignore[list-item]
    with pytest.raises(GGUFError, match="is bytes, not uint8"):
        writer.write()
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"m.gguf: cannot be written \(No such file"):
        GGUFWriter(tmp_path / "absent" / "m.gguf", {}).write()


def test_full_disk(tmp_path: Path) -> None:
    def data():  # type: ignore[no-untyped-def]
        yield ZEROS[:8]
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = GGUFWriter(tmp_path / "m.gguf", {})
    writer.add("w", (4,), F32, data)
    with pytest.raises(GGUFError, match=r"cannot be written \(No space left on device\)"):
        writer.write()
    assert list(tmp_path.iterdir()) == []


def test_target_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be written"):
        GGUFWriter(tmp_path, {}).write()
    assert not [path for path in tmp_path.parent.iterdir() if path.name.endswith(".tmp")]
