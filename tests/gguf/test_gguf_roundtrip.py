"""Files of the writer are read back by the reader and by the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType

from sp.errors import GGUFError
from sp.gguf import GGUFFile, GGUFWriter
from sp.quant import F16, F32, Q8_0

META = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 28,
    "qwen3.rope.freq_base": 1000000,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.attention.head_count_kv": [0, 2, 0, 2],
    "general.negative": -3,
    "general.large": 1 << 40,
    "general.huge": (1 << 64) - 1,
    "split.count": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.tokens": ["a", "Ġb", "", "ü🦙"],
    "tokenizer.ggml.token_type": [1, 1, 3, 4],
    "tokenizer.ggml.scores": [0, 1, 2, 3],
    "tokenizer.ggml.merges": [],
    "x.flags": [True, False],
    "x.floats": [0.5, 2],
    "x.u16": np.array([1, 65535], np.uint16),
    "x.f64": np.float64(0.1),
}
TYPES = {
    "general.architecture": [GGUFValueType.STRING],
    "qwen3.block_count": [GGUFValueType.UINT32],
    "qwen3.rope.freq_base": [GGUFValueType.FLOAT32],
    "qwen3.attention.layer_norm_rms_epsilon": [GGUFValueType.FLOAT32],
    "qwen3.attention.head_count_kv": [GGUFValueType.ARRAY, GGUFValueType.INT32],
    "general.negative": [GGUFValueType.INT32],
    "general.large": [GGUFValueType.INT64],
    "general.huge": [GGUFValueType.UINT64],
    "split.count": [GGUFValueType.UINT16],
    "tokenizer.ggml.add_bos_token": [GGUFValueType.BOOL],
    "tokenizer.ggml.tokens": [GGUFValueType.ARRAY, GGUFValueType.STRING],
    "tokenizer.ggml.token_type": [GGUFValueType.ARRAY, GGUFValueType.INT32],
    "tokenizer.ggml.scores": [GGUFValueType.ARRAY, GGUFValueType.FLOAT32],
    "x.flags": [GGUFValueType.ARRAY, GGUFValueType.BOOL],
    "x.floats": [GGUFValueType.ARRAY, GGUFValueType.FLOAT32],
    "x.u16": [GGUFValueType.ARRAY, GGUFValueType.UINT16],
    "x.f64": [GGUFValueType.FLOAT64],
}
RNG = np.random.default_rng(0)
VALUES = {
    "token_embd.weight": (F32, RNG.standard_normal((5, 64)).astype(np.float32)),
    "blk.0.attn_q.weight": (Q8_0, RNG.standard_normal((7, 96)).astype(np.float32)),
    "blk.0.half": (F16, RNG.standard_normal((3, 2, 10)).astype(np.float32)),
    "output_norm.weight": (F32, RNG.standard_normal(64).astype(np.float32)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = GGUFWriter(tmp_path / "m.gguf", META)
    for name, (fmt, values) in VALUES.items():
        writer.add(name, values.shape, fmt, fmt.encode(values))
    return writer.write()


def test_the_gguf_package_reads_what_we_write(path: Path) -> None:
    reader = GGUFReader(path)
    for key, types in TYPES.items():
        field = reader.fields[key]
        assert field.types[: len(types)] == types, key
        value = field.contents()
        expected = META[key]
        if isinstance(expected, np.ndarray):
            expected = expected.tolist()
        if key not in ("qwen3.attention.layer_norm_rms_epsilon",):
            assert value == expected, key
        else:
            assert value == pytest.approx(1e-6)
    assert [t.name for t in reader.tensors] == list(VALUES)
    for tensor in reader.tensors:
        fmt, values = VALUES[tensor.name]
        assert tuple(tensor.shape[::-1]) == values.shape
        assert tensor.data_offset % 32 == 0
        assert tensor.data.tobytes() == fmt.encode(values).tobytes()


def test_our_reader_agrees(path: Path) -> None:
    with GGUFFile.open(path) as file:
        assert file.version == 3
        assert file.architecture == "qwen3"
        assert file.nbytes == path.stat().st_size
        assert list(file.metadata) == list(META)
        for key, expected in META.items():
            value = file.metadata[key]
            assert value is file.metadata[key] or not isinstance(value, np.ndarray)
            if isinstance(value, np.ndarray):
                assert value.tolist() == list(expected), key
            elif isinstance(value, float):
                assert value == pytest.approx(expected, rel=1e-6), key
            else:
                assert value == expected, key
                assert type(value) is type(expected) or key == "x.f64"
        assert list(file.tensors) == list(VALUES)
        for name, (fmt, values) in VALUES.items():
            weight = file.weight(name)
            assert weight.shape == values.shape
            assert weight.format is fmt
            assert not weight.data.flags.writeable
            np.testing.assert_array_equal(weight.data, fmt.encode(values))


def test_weights_outlive_the_file(path: Path) -> None:
    with GGUFFile.open(path) as file:
        weight = file.weight("token_embd.weight")
    np.testing.assert_array_equal(weight.dense(), VALUES["token_embd.weight"][1])


def test_we_read_what_the_gguf_package_writes(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType
    from gguf import GGUFWriter as TheirWriter

    path = tmp_path / "theirs.gguf"
    theirs = TheirWriter(path, "qwen3")
    theirs.add_uint32("qwen3.block_count", 2)
    theirs.add_token_list(["a", "b"])
    theirs.add_token_types([1, 3])
    values = RNG.standard_normal((4, 64)).astype(np.float32)
    theirs.add_tensor("f32", values)
    theirs.add_tensor("q8", Q8_0.encode(values), raw_dtype=GGMLQuantizationType.Q8_0)
    theirs.write_header_to_file()
    theirs.write_kv_data_to_file()
    theirs.write_tensors_to_file()
    theirs.close()
    with GGUFFile.open(path) as file:
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        np.testing.assert_array_equal(file.weight("f32").dense(), values)
        np.testing.assert_array_equal(file.weight("q8").data, Q8_0.encode(values))


def test_streamed_pieces_make_the_same_file(path: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    writer = GGUFWriter(tmp_path / "streamed.gguf", META)
    for name, (fmt, values) in VALUES.items():
        packed = fmt.encode(values).reshape(-1)
        writer.add(
            name, values.shape, fmt, lambda packed=packed: (packed[i : i + 100] for i in range(0, packed.size, 100))
        )
    assert writer.write(seen.append).read_bytes() == path.read_bytes()
    assert sum(seen) == sum(fmt.encode(values).size for fmt, values in VALUES.values())
    assert max(seen) == 100


@pytest.mark.parametrize("surplus", [-1, 1])
def test_wrong_size_leaves_no_file(tmp_path: Path, surplus: int) -> None:
    old = tmp_path / "m.gguf"
    old.write_bytes(b"precious")
    writer = GGUFWriter(old, META)
    writer.add("w", (4,), F32, lambda: iter([np.zeros(16 + surplus, np.uint8)]))
    with pytest.raises(GGUFError, match="needs 16 bytes"):
        writer.write()
    assert old.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [old]


def test_an_exception_in_the_data_leaves_no_file(tmp_path: Path) -> None:
    def data():  # type: ignore[no-untyped-def]
        yield np.zeros(8, np.uint8)
        raise KeyboardInterrupt

    writer = GGUFWriter(tmp_path / "m.gguf", META)
    writer.add("w", (4,), F32, data)
    with pytest.raises(KeyboardInterrupt):
        writer.write()
    assert list(tmp_path.iterdir()) == []
