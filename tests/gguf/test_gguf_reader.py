"""Valid files: versions, shards, alignments, unknown types, sizes past 32 bits."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from raw_gguf import BOOL, I32, STRING, U8, U16, U32, array, build, key, string, tensor, text, u32

from sp.errors import GGUFError
from sp.gguf import GGUFFile, GGUFWriter
from sp.quant import F32, Q8_0

RNG = np.random.default_rng(1)


def u16(name: str, value: int) -> bytes:
    return key(name, U16, struct.pack("<H", value))


def i32(name: str, value: int) -> bytes:
    return key(name, I32, struct.pack("<i", value))


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path: Path, version: int) -> None:
    path = tmp_path / "m.gguf"
    values = RNG.standard_normal((2, 8)).astype("<f4")
    path.write_bytes(build([u32("x", 7)], [tensor("w", [8, 2])], values.tobytes(), version=version))
    with GGUFFile.open(path) as file:
        assert file.version == version
        assert file.metadata["x"] == 7
        info = file.tensors["w"]
        assert (info.shape, info.type_name, info.elements, info.nbytes) == ((2, 8), "F32", 16, 64)
        np.testing.assert_array_equal(file.weight("w").dense(), values)


def test_scalars_and_arrays_of_every_type(tmp_path: Path) -> None:
    codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    values = {"B": 250, "b": -5, "H": 65000, "h": -30000, "I": 4_000_000_000, "i": -2_000_000_000, "f": 0.5}
    values |= {"?": True, "Q": (1 << 64) - 1, "q": -(1 << 63), "d": 0.1}
    keys = [key(f"s.{code}", kind, struct.pack(f"<{code}", values[code])) for kind, code in codes.items()]
    keys += [array(f"a.{code}", kind, 2, struct.pack(f"<2{code}", values[code], 0)) for kind, code in codes.items()]
    keys += [array("a.empty", U32, 0, b""), array("a.none", STRING, 0, b"")]
    path = tmp_path / "m.gguf"
    path.write_bytes(build(keys))
    with GGUFFile.open(path) as file:
        for code, value in values.items():
            scalar, pair = file.metadata[f"s.{code}"], file.metadata[f"a.{code}"]
            assert scalar == value
            assert type(scalar) is type(value)
            assert isinstance(pair, np.ndarray)
            assert pair.dtype == np.dtype(code)
            assert pair.tolist() == [value, 0]
        assert len(file.metadata["a.empty"]) == 0  # type: ignore[arg-type]
        assert file.metadata["a.none"] == []
        with pytest.raises(KeyError):
            file.metadata["absent"]
        assert "absent" not in file.metadata


def test_array_of_strings_that_are_not_utf8_fails_only_when_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([array("raw", STRING, 2, text("a") + text(b"\xff")), u32("x", 1)]))
    with GGUFFile.open(path) as file:
        assert file.metadata["x"] == 1
        with pytest.raises(GGUFError, match="string 1 of key 'raw' is not UTF-8"):
            file.metadata["raw"]


def test_bools_are_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([array("flags", BOOL, 3, b"\x00\x01\x02")]))
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match="'flags' contains bools that are not 0 or 1"):
        file.metadata["flags"]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    values = RNG.standard_normal((3, 5)).astype(np.float32)
    writer = GGUFWriter(tmp_path / "m.gguf", {"general.alignment": alignment})
    for name in "ab":
        writer.add(name, values.shape, F32, F32.encode(values))
    with GGUFFile.open(writer.write()) as file:
        for name in "ab":
            assert file.tensors[name].offset % alignment == 0
            np.testing.assert_array_equal(file.weight(name).dense(), values)


def test_types_without_decoder_are_listed_and_refused_only_when_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("odd", [256, 2], 41), tensor("ok", [4], 0, 160)], bytes(256)))
    with GGUFFile.open(path) as file:
        info = file.tensors["odd"]
        assert (info.type_name, info.shape, info.nbytes) == ("Q1_0", (2, 256), 72)
        assert file.weight("ok").shape == (4,)
        with pytest.raises(GGUFError, match=r"unsupported type Q1_0 in tensor odd: use a file .*Q8_0"):
            file.weight("odd")


def test_missing_tensor_offers_near_names(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("blk.0.attn_q.weight", [4])], bytes(32)))
    with GGUFFile.open(path) as file:
        with pytest.raises(GGUFError, match=r"no tensor 'blk.0.attn_k.weight'; did you mean 'blk.0.attn_q.weight'\?"):
            file.weight("blk.0.attn_k.weight")
        with pytest.raises(GGUFError, match="see `sp inspect`"):
            file.weight("zzz")


def test_closed_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("w", [4])], bytes(32)))
    with GGUFFile.open(path) as file:
        pass
    file.close()
    with pytest.raises(GGUFError, match="closed"):
        file.weight("w")


def test_architecture(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([u32("general.architecture", 3)]))
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match=r"'general.architecture' is missing"):
        _ = file.architecture


def test_files_hold_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([], [tensor("w", [4])], bytes(32)))
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(build([], [tensor("w", [4])]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with GGUFFile.open(path) as file:
            file.weight("w")
        with pytest.raises(GGUFError):
            GGUFFile.open(bad)
    assert len(os.listdir("/proc/self/fd")) == before


# Shards


def shard(index: int, tensor_name: str, total: int = 3, **claims: int) -> bytes:
    """One of three, with eight floats of `index` + 1; `claims` lie about number or count."""
    keys = [string("general.architecture", "qwen3")] if index == 0 else []
    keys += [u16("split.no", claims.get("number", index)), u16("split.count", claims.get("count", 3))]
    tensors = [tensor(tensor_name, [8])]
    return build([*keys, i32("split.tensors.count", total)], tensors, struct.pack("<8f", *[index + 1.0] * 8))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"big model-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for index, path in enumerate(paths):
        path.write_bytes(shard(index, f"w{index}", 3))
    return paths


@pytest.mark.parametrize("which", [0, 1, 2])
def test_shards_open_from_any_of_them(shards: list[Path], which: int) -> None:
    with GGUFFile.open(shards[which]) as file:
        assert file.path == shards[0]
        assert file.paths == tuple(shards)
        assert file.architecture == "qwen3"
        assert file.nbytes == sum(path.stat().st_size for path in shards)
        assert [file.weight(name).dense()[0] for name in file.tensors] == [1, 2, 3]


def test_missing_shard(shards: list[Path]) -> None:
    shards[1].unlink()
    with pytest.raises(GGUFError, match=r"00002-of-00003.gguf: no such file"):
        GGUFFile.open(shards[0])


def test_damaged_shard_is_named(shards: list[Path]) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r"00003-of-00003.gguf: truncated"):
        GGUFFile.open(shards[0])


@pytest.mark.parametrize(
    ("index", "content", "message"),
    [
        (0, shard(0, "w0", 3, count=4), "one of 4 shards but its name says 3"),
        (1, shard(1, "w1", 3, number=2), "different shard numbers"),
        (1, shard(1, "w1", 3, count=2), "different shard numbers"),
        (1, shard(1, "w0", 3), "'w0' is in two shards"),
        (0, shard(0, "w0", 7), "contain 3 tensors, not 7"),
        (0, build([u16("split.no", 0), string("split.count", "3")]), "'split.count' is not an integer"),
    ],
)
def test_shards_that_do_not_fit_together(shards: list[Path], index: int, content: bytes, message: str) -> None:
    shards[index].write_bytes(content)
    with pytest.raises(GGUFError, match=message):
        GGUFFile.open(shards[0])


def test_shard_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.write_bytes(shard(0, "w0", 3))
    with pytest.raises(GGUFError, match="one of 3 shards but its name says 1"):
        GGUFFile.open(path)


def test_whole_file_named_like_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(build([string("general.architecture", "qwen3")]))
    with GGUFFile.open(path) as file:
        assert file.paths == (path,)


@pytest.mark.parametrize("name", ["m-00001-of-99999.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf"])
def test_impossible_shard_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(build())
    with pytest.raises(GGUFError, match="out of range"):
        GGUFFile.open(tmp_path / name)


# Size


def test_offsets_past_32_bits(tmp_path: Path) -> None:
    """A file of 19.9 GiB, with holes: 64-bit offsets in the table, the last row read from the right place."""
    rows, columns = 1 << 18, 5120
    row_bytes = Q8_0.row_bytes(columns)
    names = [f"blk.{i}.ffn_up.weight" for i in range(15)]
    writer = GGUFWriter(tmp_path / "sparse.gguf", {"general.architecture": "qwen3"})
    for name in names:
        writer.add(name, (rows, columns), Q8_0, lambda: iter(()))
    path = tmp_path / "big.gguf"
    header = writer._header()
    total = len(header) + len(names) * rows * row_bytes
    last = Q8_0.encode(RNG.standard_normal(columns).astype(np.float32))
    with path.open("wb") as out:
        out.write(header)
        out.truncate(total)
        out.seek(total - row_bytes)
        out.write(last.tobytes())
    assert total > 19 << 30
    with GGUFFile.open(path) as file:
        infos = list(file.tensors.values())
        assert [info.offset for info in infos] == [len(header) + i * rows * row_bytes for i in range(len(names))]
        assert infos[-1].offset > 1 << 34
        weight = file.weight(names[-1])
        np.testing.assert_array_equal(weight.data[-1], last)
        assert not weight.data[0].any()
    path.unlink()


def test_metadata_of_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    """248K tokens and 247K merges, as Qwen3.6 has: the target is half a second on an idle machine."""
    tokens = [f"tok{i:x}" for i in range(248_320)]
    metadata = {
        "general.architecture": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(len(tokens), np.int32),
        "tokenizer.ggml.merges": [f"{left} {left}" for left in tokens[:247_587]],
    }
    path = GGUFWriter(tmp_path / "m.gguf", metadata).write()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with GGUFFile.open(path) as file:
            assert file.architecture == "qwen35"
        times.append(time.perf_counter() - start)
    assert min(times) < 1.5, times  # 0.2 s measured; generous for a busy machine
    with GGUFFile.open(path) as file:
        assert file.metadata["tokenizer.ggml.tokens"] == tokens
        assert len(file.metadata["tokenizer.ggml.merges"]) == 247_587  # type: ignore[arg-type]


def test_u8_arrays_are_copies(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([array("a", U8, 3, b"abc")]))
    with GGUFFile.open(path) as file:
        first = file.metadata["a"]
        assert first is file.metadata["a"]
        assert isinstance(first, np.ndarray)
        assert first.flags.owndata
