"""Decoders agree with the `gguf` package to the last bit, whatever the bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from quant_samples import writes

from sp.arrays import Bytes, Floats
from sp.quant import BF16, F16, F32, FORMATS, BlockFormat
from sp.quant.base import SLAB

SCALES = {  # where fp16 scales lie; formats of other scales are not here
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
PACKED = [fmt for fmt in FORMATS.values() if fmt.block_size > 1]
packed = pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)


def reference(fmt: BlockFormat, blocks: Bytes) -> Floats:
    raw = blocks.view({"F32": np.float32, "F16": np.float16}.get(fmt.name, np.uint8))
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.ggml_type)).astype(np.float32)


def assert_same_bits(fmt: BlockFormat, blocks: Bytes) -> None:
    """All bits, but for those of a NaN: which of two operands leaves its own is up to the machine."""
    with np.errstate(all="ignore"):
        ours, theirs = fmt.decode(blocks), reference(fmt, blocks)
    assert ours.dtype == np.float32
    unknown = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), unknown)
    np.testing.assert_array_equal(ours.view(np.uint32)[~unknown], theirs.view(np.uint32)[~unknown])


def random_blocks(fmt: BlockFormat, n: int, seed: int) -> Bytes:
    """Random bytes, among them scales of every kind, Inf and NaN too."""
    return np.random.default_rng(seed).integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)


def finite(fmt: BlockFormat, blocks: Bytes) -> None:
    """Clear the top exponent bit of every scale, wherever the format keeps it."""
    for at in SCALES.get(fmt.name, ()):
        blocks[..., at + 1] &= 0xBF
    if fmt.name == "MXFP4":
        blocks[..., 0] &= 0x7F
    if fmt.name == "IQ1_M":
        blocks[..., 55] &= 0xBF


@packed
def test_random_blocks(fmt: BlockFormat) -> None:
    blocks = random_blocks(fmt, 6000, 1)
    for at in range(fmt.block_bytes):
        assert len(np.unique(blocks[:, at])) == 256, "the draw must cover every value of every byte"
    assert_same_bits(fmt, blocks)


@packed
def test_every_value_of_every_byte(fmt: BlockFormat) -> None:
    base = random_blocks(fmt, 1, 2)[0]
    finite(fmt, base)  # so that the other bytes show
    blocks = np.tile(base, (fmt.block_bytes, 256, 1))
    every = np.arange(fmt.block_bytes)
    blocks[every, :, every] = np.arange(256)
    assert_same_bits(fmt, blocks.reshape(-1, fmt.block_bytes))


EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]


@pytest.mark.parametrize("fmt", [fmt for fmt in PACKED if fmt.name in SCALES], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("bits", EDGES)
def test_edge_scales(fmt: BlockFormat, bits: int) -> None:
    """Zero, smallest and largest subnormal, smallest normal, negative, largest, infinite and NaN fp16 scales."""
    for at in SCALES[fmt.name]:
        blocks = random_blocks(fmt, 64, 3)
        blocks[:, at : at + 2] = np.array([bits], "<u2").view(np.uint8)
        assert_same_bits(fmt, blocks)


@pytest.mark.parametrize("fmt", [F16, BF16], ids=lambda fmt: fmt.name)
def test_every_finite_half(fmt: BlockFormat) -> None:
    codes = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    keep = np.isfinite(reference(fmt, codes))
    assert_same_bits(fmt, codes.reshape(-1, 2)[keep].reshape(-1))
    assert not np.isfinite(fmt.decode(codes)[~keep]).any()


def test_f32_decodes_without_a_copy() -> None:
    data = np.random.default_rng(4).integers(0, 256, (3, 40), dtype=np.uint8)
    assert np.shares_memory(F32.decode(data), data)
    assert F32.decode(data).shape == (3, 10)
    np.testing.assert_array_equal(F32.decode(data).view(np.uint8), data)


@packed
def test_leading_axes_slabs_and_strides(fmt: BlockFormat) -> None:
    """Crossing slabs, keeping axes and reading a strided view change nothing."""
    n = 2 * SLAB // fmt.block_size + 6
    blocks = random_blocks(fmt, n, 5)
    finite(fmt, blocks)
    one_by_one = np.concatenate([fmt.decode(block) for block in blocks[-8:]])
    whole = fmt.decode(blocks.reshape(2, n // 2, fmt.block_bytes))
    assert whole.shape == (2, n // 2, fmt.block_size)
    np.testing.assert_array_equal(whole.reshape(-1)[-8 * fmt.block_size :], one_by_one)
    np.testing.assert_array_equal(fmt.decode(blocks[::2]), whole.reshape(n, -1)[::2])


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_empty(fmt: BlockFormat) -> None:
    assert fmt.decode(np.empty((0, 2 * fmt.block_bytes), np.uint8)).shape == (0, 2 * fmt.block_size)
    assert fmt.decode(np.empty((3, 0), np.uint8)).shape == (3, 0)
    if writes(fmt):
        assert fmt.encode(np.empty((0, 2 * fmt.block_size), np.float32)).shape == (0, 2 * fmt.block_bytes)
