"""Logits of a model in each weight format are those of its values as the `gguf` package decodes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from read_by_gguf import read_by_gguf

from sp.arrays import Floats
from sp.errors import ModelError
from sp.gguf import GGUFFile, GGUFWriter
from sp.models import load_model, prefill
from sp.models.file.file_type import file_type_id
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_random, write_synthetic
from sp.planning.inspect import inspect_file
from sp.quant import F32, FORMATS, BlockFormat, format_by_name

TYPES = [fmt.name.lower() for fmt in FORMATS.values() if fmt.block_size > 1]
NVFP4 = format_by_name("nvfp4")


def write_wordless(path: Path, shape: str, file_type: str) -> Path:
    """The file of `write_synthetic` without its tokenizer, which takes the `gguf` package longer than the tensors."""
    found = find_shape(shape)
    metadata = found.metadata() | {"general.file_type": file_type_id(file_type)}
    return write_random(path, metadata, found.plan(file_type), 0, fixed=found.fixed_tensors())


def decoded_by_gguf(path: Path, scales: dict[str, float] | None = None) -> Path:
    """A copy of a file in F32: every tensor read and decoded by the `gguf` package, then times its scale."""
    with GGUFFile.open(path) as file:
        writer = GGUFWriter(path.with_suffix(".f32.gguf"), dict(file.metadata))
    for tensor in read_by_gguf(path).tensors:
        if tensor.name.endswith("scale"):
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values * np.float32((scales or {}).get(tensor.name, 1))
        shape = tuple(int(n) for n in tensor.shape[::-1])
        writer.add(tensor.name, shape, F32, F32.encode(values.reshape(shape)))
    return writer.write()


def logits(path: Path) -> Floats:
    model, n = load_model(path), 60
    ids = np.random.default_rng(0).integers(0, model.config.vocab, n)
    return prefill(model, ids, np.arange(n), model.new_cache(n, "f32"))


def relative_rms(found: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


MIXES = ["q4_k_m", "ud-q4_k_xl"]


@pytest.mark.parametrize(
    ("shape", "file_type"),
    [*(("tiny-qwen3", file_type) for file_type in [*TYPES, *MIXES]), *(("tiny-qwen35", mix) for mix in MIXES)],
)
def test_logits_are_those_of_the_values_gguf_decodes(tmp_path: Path, shape: str, file_type: str) -> None:
    path = write_wordless(tmp_path / "m.gguf", shape, file_type)
    expected = logits(decoded_by_gguf(path))
    assert expected.std() > 0.05
    assert relative_rms(logits(path), expected) <= 1e-4


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.packing is None], ids=lambda fmt: fmt.name)
def test_inspect_tells_what_the_device_holds_instead(tmp_path: Path, fmt: BlockFormat) -> None:
    info = inspect_file(write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", fmt.name.lower()))
    assert all(row["supported"] for row in info["tensors_by_type"])
    assert not [line for line in info["warnings"] if "decode" in line]
    (row,) = info["repacked"]
    assert (row["source"], row["target"]) == (fmt.name, "Q8_0")
    assert row["target_bytes"] * fmt.bits_per_value == pytest.approx(row["source_bytes"] * 8.5)


def with_scales(path: Path, scales: dict[str, float], kind: str = "scale", shape: tuple[int, ...] = (1,)) -> Path:
    """A copy of a file with scales of tensors, as llama.cpp's converters name them."""
    with GGUFFile.open(path) as file:
        writer = GGUFWriter(path.with_suffix(".scaled.gguf"), dict(file.metadata))
        for name in file.tensors:
            weight = file.weight(name)
            writer.add(name, weight.shape, weight.format, weight.data)
            if name in scales:
                values = np.full(shape, scales[name], np.float32)
                writer.add(name.removesuffix("weight") + kind, shape, F32, F32.encode(values))
        return writer.write()


@pytest.fixture
def scaled(tmp_path: Path) -> tuple[Path, dict[str, float]]:
    """A file in NVFP4, and a scale for each of its matrices but the embedding."""
    path = write_wordless(tmp_path / "m.gguf", "tiny-qwen3", "nvfp4")
    with GGUFFile.open(path) as file:
        names = [n for n in file.tensors if file.weight(n).format is NVFP4 and n.startswith("blk.")]
    return path, {name: 0.6 + 0.01 * i for i, name in enumerate(names)}


def test_scales_of_whole_tensors_are_honoured(scaled: tuple[Path, dict[str, float]]) -> None:
    path, scales = scaled
    expected = logits(decoded_by_gguf(path, scales))
    assert relative_rms(logits(path), expected) > 0.1, "the scales must show"
    assert relative_rms(logits(with_scales(path, scales)), expected) <= 1e-4


def test_scales_of_activations_change_nothing(scaled: tuple[Path, dict[str, float]]) -> None:
    """They calibrate a quantiser of activations, which sp does not have."""
    path, scales = scaled
    np.testing.assert_array_equal(logits(with_scales(path, scales, "input_scale")), logits(path))


@pytest.mark.parametrize(("value", "shape"), [(np.nan, (1,)), (np.inf, (1,)), (1.0, (2,)), (1.0, (1, 1))])
def test_a_scale_that_is_no_number_is_refused(
    scaled: tuple[Path, dict[str, float]], value: float, shape: tuple[int, ...]
) -> None:
    name = "blk.1.ffn_up.weight"
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.scale.*[^\n]$"):
        load_model(with_scales(scaled[0], {name: value}, shape=shape))


def test_a_scale_beside_another_format_is_refused(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", "q8_0")
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.scale"):
        load_model(with_scales(path, {"blk.0.attn_q.weight": 2.0}))
