"""Weight, the table of formats, sizes past 2**31 and one-line errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import gguf
import numpy as np
import pytest
from quant_samples import writes

from sp.errors import ConfigError
from sp.models.synthetic.synthetic import random_blocks
from sp.ops import embedding
from sp.quant import BF16, F16, F32, FORMATS, IQ3_S, Q4_K, Q8_0, BlockFormat, Weight, format_by_name

every = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
written = pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if writes(fmt)], ids=lambda fmt: fmt.name)


def one_line(call: Callable[[], object]) -> str:
    """The message of the ConfigError that `call` must raise, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300  # a list of all formats among them
    return message


@every
def test_sizes_are_those_of_gguf(fmt: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_size, fmt.block_bytes)
    assert fmt.bits_per_value == 8 * fmt.block_bytes / fmt.block_size


def test_formats_by_name() -> None:
    assert len({fmt.name for fmt in FORMATS.values()}) == len(FORMATS)
    assert all(format_by_name(fmt.name.lower()) is fmt for fmt in FORMATS.values())
    assert format_by_name("q4_k") is Q4_K
    assert "did you mean" in one_line(lambda: format_by_name("q4k"))


@every
def test_counts_do_not_wrap(fmt: BlockFormat) -> None:
    n = np.int32(2**31 - 256)  # a NumPy int32 would wrap in the product
    assert fmt.row_bytes(n) == (2**31 - 256) // fmt.block_size * fmt.block_bytes
    shape = (np.int32(2**20), np.int32(2**13))
    assert fmt.nbytes(shape) == 2**33 // fmt.block_size * fmt.block_bytes
    assert type(fmt.nbytes(shape)) is int


def test_rows_past_two_to_the_31() -> None:
    """A weight of 2**31 + 5 rows made of one row in memory: sizes and row numbers stay exact."""
    row = Q8_0.encode(np.arange(32, dtype=np.float32))
    count = 2**31 + 5
    w = Weight("big", Q8_0, (count, 32), np.broadcast_to(row, (count, 34)))
    assert w.nbytes == 34 * count
    np.testing.assert_array_equal(embedding(np.array([[count - 1]]), w)[0, 0], Q8_0.decode(row))
    assert "big" in one_line(lambda: embedding(np.array([count]), w))


@every
def test_weight_views(fmt: BlockFormat) -> None:
    blocks = random_blocks(np.random.default_rng(14), fmt, 6 * 512 // fmt.block_size, 1.0)
    w = Weight("blk.0.ffn_up.weight", fmt, (6, 512), blocks.reshape(6, -1))
    dense = w.dense()
    assert w.shape == dense.shape == (6, 512)
    assert w.nbytes == w.data.nbytes == fmt.nbytes((6, 512))
    np.testing.assert_array_equal(dense, fmt.decode(blocks.reshape(6, -1)))
    np.testing.assert_array_equal(embedding(np.array([5, 0, 5]), w), dense[[5, 0, 5]])
    assert embedding(np.zeros((2, 0), np.int64), w).shape == (2, 0, 512)
    assert "rows" in one_line(lambda: embedding(np.array([0]), Weight("v", fmt, (512,), blocks.reshape(6, -1)[0])))
    assert "6 rows" in one_line(lambda: embedding(np.array([-1]), w))


def test_copies_look_for_facts_of_their_own() -> None:
    """An address is of one place in memory."""
    w = Weight.from_floats("w", np.ones((2, 64), np.float32), F32)
    where = w.found(lambda weight: weight.data.ctypes.data)
    for other in (copy.deepcopy(w), pickle.loads(pickle.dumps(w)), replace(w, data=w.data.copy())):
        assert "_facts" not in vars(other)
        assert other.data.ctypes.data != where
        np.testing.assert_array_equal(other.dense(), w.dense())


def test_f32_weight_is_a_view() -> None:
    data = F32.encode(np.ones((2, 3), np.float32))
    w = Weight("w", F32, (2, 3), data)
    assert np.shares_memory(w.dense(), data)


def test_weight_refuses_data_of_another_shape() -> None:
    data = np.zeros((4, 144), np.uint8)
    assert "w: " in one_line(lambda: Weight("w", Q4_K, (4, 512), data))
    assert "int8" in one_line(lambda: Weight("w", Q4_K, (4, 256), data.view(np.int8)))  # type: ignore[arg-type]
    assert "axis" in one_line(lambda: Weight("w", F32, (), np.zeros(4, np.uint8)))
    assert "257" in one_line(lambda: Weight("w", Q4_K, (4, 257), data))


@every
def test_bad_inputs(fmt: BlockFormat) -> None:
    assert fmt.name in one_line(lambda: fmt.encode(np.float32(1)))  # type: ignore[arg-type]
    assert fmt.name in one_line(lambda: fmt.decode(np.uint8(1)))  # type: ignore[arg-type]
    assert fmt.name in one_line(lambda: fmt.decode(np.zeros(fmt.block_bytes, np.int8)))  # type: ignore[arg-type]
    assert fmt.name in one_line(lambda: fmt.decode(np.zeros(fmt.block_bytes + 1, np.uint8)))
    assert fmt.name in one_line(lambda: fmt.row_bytes(-fmt.block_size))
    if fmt.block_size > 1:
        assert fmt.name in one_line(lambda: fmt.encode(np.zeros((2, fmt.block_size + 1), np.float32)))


@written
def test_from_floats(fmt: BlockFormat) -> None:
    values = np.random.default_rng(14).standard_normal((6, 512)).astype(np.float32)
    w = Weight.from_floats("w", values, fmt)
    assert w.shape == (6, 512)
    np.testing.assert_array_equal(w.dense(), fmt.decode(fmt.encode(values)))


def test_formats_that_are_only_read_say_so() -> None:
    assert "read-only" in one_line(lambda: IQ3_S.encode(np.zeros(256, np.float32)))


@written
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_named(fmt: BlockFormat, bad: float) -> None:
    """Only F32 can carry them; everywhere else they would spoil a block in silence."""
    values = np.ones((3, 512), np.float32)
    values[2, 300] = bad
    if fmt is F32:
        np.testing.assert_array_equal(fmt.decode(fmt.encode(values)), values)
    else:
        assert "NaN or Inf" in one_line(lambda: fmt.encode(values))


@written
@pytest.mark.parametrize("size", [1e9, 1e20, 3.4028235e38])
def test_magnitudes_past_the_scale_are_named(fmt: BlockFormat, size: float) -> None:
    values = np.full(256, -size, np.float32)
    values[::2] = size / 3
    if fmt is F32 or (fmt is BF16 and size < 3.38e38):
        assert np.allclose(fmt.decode(fmt.encode(values)), values, rtol=2**-8)
    else:
        assert fmt.name in one_line(lambda: fmt.encode(values))


def test_f16_limit_is_exact() -> None:
    below = np.nextafter(np.float32(65520), np.float32(0))
    assert F16.decode(F16.encode(np.array([below, -below])))[0] == 65504
    assert "65504" in one_line(lambda: F16.encode(np.array([0, 65520], np.float32)))
