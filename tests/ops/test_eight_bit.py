"""Products in eight bits in NumPy: rounding of inputs, integer forms of weights, products against float64."""

from __future__ import annotations

import numpy as np
import pytest

from sp.errors import DeviceError, ModelError
from sp.kernels.specs.matmul.gemm_int8 import KINDS
from sp.models.synthetic.random_blocks import random_blocks
from sp.ops.eight_bit.inputs import LEAST, MOST, ORDER, Quantised, quantise, tiled
from sp.ops.eight_bit.integer_form import integer_form
from sp.ops.eight_bit.product import product
from sp.ops.norms import rms_norm
from sp.quant import BF16, FORMATS, Q8_0, BlockFormat, Weight, format_by_name

NATIVE = [FORMATS[kind] for kind in KINDS]
Q4_1 = format_by_name("Q4_1")
RNG = np.random.default_rng(0)


def weight(fmt: BlockFormat, rows: int, width: int) -> Weight:
    blocks = random_blocks(np.random.default_rng([rows, width]), fmt, rows * width // fmt.block_size, 0.05)
    return Weight(fmt.name, fmt, (rows, width), blocks.reshape(rows, -1))


def test_codes_are_the_nearest_of_scales_that_a_magic_number_times_is_exact() -> None:
    x = RNG.standard_normal((7, 320)).astype(np.float32) * np.exp(RNG.uniform(-20, 20, (7, 1))).astype(np.float32)
    q = quantise(x)
    groups = x.reshape(7, -1, 32).astype(np.float64)
    assert np.abs(q.codes).max() == 127
    np.testing.assert_allclose(q.scales, np.abs(groups).max(-1) / 127, rtol=2.0**-21)
    exact = 1.5 * 2.0**23 * q.scales.astype(np.float64)
    assert (exact.astype(np.float32) == exact).all()
    ratio = groups / q.scales[..., None].astype(np.float64)
    assert np.abs(q.codes.reshape(groups.shape) - ratio).max() < 0.5001
    assert (q.sums == q.codes.reshape(groups.shape).astype(int).sum(-1)).all()


def test_halves_go_to_even() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    assert quantise(x).codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_zeros_stay_zeros_and_so_does_what_is_next_to_nothing() -> None:
    x = np.zeros((3, 64), np.float32)
    x[1, :32] = LEAST / 2
    x[2, 5] = LEAST
    q = quantise(x)
    assert not q.codes[:2].any()
    assert not q.scales[:2].any()
    assert q.codes[2, 5] == 127
    assert np.isfinite(q.scales).all()
    assert not product(q, weight(Q8_0, 64, 64))[:2].any()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, MOST])
def test_what_is_no_number_makes_its_token_nan_and_no_other(bad: float) -> None:
    x = RNG.standard_normal((3, 128)).astype(np.float32)
    x[1, 40] = bad
    q = quantise(x)
    assert np.isnan(q.scales[1, 1])
    assert np.isfinite(q.scales[1, [0, 2, 3]]).all()
    assert not q.codes[1, 32:64].any()
    assert not q.sums[1, 1]
    y = product(q, weight(Q4_1, 64, 128))
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_a_norm_comes_first() -> None:
    x, scale = RNG.standard_normal((5, 128)).astype(np.float32), RNG.uniform(0.5, 2, 128).astype(np.float32)
    for got, want in zip(quantise(x, (scale, 1e-6)), quantise(rms_norm(x, scale, 1e-6)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_of_half_tiles_are_refused() -> None:
    with pytest.raises(DeviceError, match="multiple of 64"):
        quantise(np.zeros((1, 96), np.float32))


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_an_integer_form_is_the_weight(fmt: BlockFormat) -> None:
    w = weight(fmt, 70, 512)
    form, dense = integer_form(w), w.dense()
    each = 512 // form.scales.shape[1]
    values = form.codes * np.repeat(form.scales, each, axis=1).astype(np.float64)
    if form.shifts is None:
        assert (values.astype(np.float32) == dense).all()
    else:
        values += np.repeat(form.shifts, 32, axis=1)
        np.testing.assert_allclose(values, dense, atol=3e-7 * np.abs(dense).max())


def test_plain_numbers_have_no_integer_form() -> None:
    with pytest.raises(ModelError, match="no integer codes"):
        integer_form(weight(BF16, 64, 64))


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_a_product_of_given_codes_is_that_of_float64(fmt: BlockFormat) -> None:
    w = weight(fmt, 70, 512)
    codes = RNG.integers(-127, 128, (5, 512)).astype(np.int8)
    scales = RNG.uniform(1e-3, 1, (5, 16)).astype(np.float32)
    x = codes * np.repeat(scales, 32, axis=1).astype(np.float64)
    got = product(Quantised(codes, scales, codes.reshape(5, 16, 32).sum(-1, dtype=np.int32)), w)
    size = np.abs(x) @ np.abs(w.dense().astype(np.float64)).T
    assert (np.abs(got - x @ w.dense().astype(np.float64).T) / size).max() < 1e-6


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="do not fit"):
        product(quantise(np.zeros((1, 64), np.float32)), weight(Q8_0, 64, 128))


def test_the_layout_has_every_code_where_operands_look_for_it() -> None:
    """Lane c of a quad takes bytes 4 c .. 4 c + 3 of 16: inputs 2 c, 2 c + 8, 2 c + 1, 2 c + 9."""
    assert ORDER.reshape(4, 4).tolist() == [[2 * c, 2 * c + 8, 2 * c + 1, 2 * c + 9] for c in range(4)]
    q = quantise(RNG.standard_normal((5, 192)).astype(np.float32))
    t = tiled(q)
    for token, tile, place in ((0, 0, 0), (4, 2, 63), (2, 1, 37)):
        k = 64 * tile + place // 16 * 16 + ORDER[place % 16]
        assert t.codes[tile, token, place] == q.codes[token, k]
    assert t.pairs[5, 3].tolist() == [q.scales[3, 5], q.scales[3, 5] * np.float32(q.sums[3, 5])]
