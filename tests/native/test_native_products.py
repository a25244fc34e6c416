"""Compiled products, and the unpacking before them, against gguf's decoders in float64."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from sp.arrays import Bytes, Floats
from sp.models.synthetic.synthetic import random_blocks
from sp.native.blocks import UNPACK, unit
from sp.ops.attention.attention_heads import head_norm_rope
from sp.ops.matmul.few_rows import FEW, decoded, few_products, few_rows, native_rows
from sp.ops.matmul.project import gated_project, linear, project, project_add
from sp.ops.rope import Rope
from sp.quant import F16, F32, FORMATS, IQ4_NL, Q4_1, Q4_K, Q8_0, BlockFormat, Weight

every = pytest.mark.parametrize("fmt", list(UNPACK), ids=lambda fmt: fmt.name)
BLOCKS = 3


def packed(fmt: BlockFormat, rows: int, width: int, seed: int = 0) -> Weight:
    """Random codes, and scales of either sign where the format has them."""
    rng = np.random.default_rng(seed)
    if fmt.block_size == 1:
        return Weight.from_floats("w", rng.standard_normal((rows, width)).astype(np.float32), fmt)
    data = random_blocks(rng, fmt, rows * width // fmt.block_size, 0.5)
    return Weight("w", fmt, (rows, width), data.reshape(rows, -1))


def truth(w: Weight) -> Floats:
    """Its values by another decoder."""
    kind = gguf.GGMLQuantizationType(w.format.ggml_type)
    return gguf.quants.dequantize(w.data, kind).reshape(w.shape).astype(np.float64)


def assert_sums(found: Floats, x: Floats, w: Floats, plus: Floats | float = 0.0) -> None:
    """Each sum is off by what its terms, rounded once each, may make of it."""
    most = np.abs(x) @ np.abs(w).T + np.abs(plus) + 1e-30
    assert found.dtype == np.float32
    assert (np.abs(found - (x @ w.T + plus)) / most).max() < 3e-6


@every
def test_unpacked_values_are_gguf_s_to_the_bit(fmt: BlockFormat) -> None:
    w = packed(fmt, 7, BLOCKS * max(fmt.block_size, 16))
    np.testing.assert_array_equal(decoded(w.data, fmt), truth(w).astype(np.float32))
    np.testing.assert_array_equal(decoded(w.data, fmt).view(np.int32), fmt.decode(w.data).view(np.int32))


@every
def test_any_bytes_are_unpacked_as_numpy_does(fmt: BlockFormat) -> None:
    """Zeros, subnormal and infinite scales among them; what is no number need not be the same one."""
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, (9, fmt.row_bytes(4 * max(fmt.block_size, 16))), np.uint8)
    data[0] = 0
    with np.errstate(all="ignore"):
        want, found = fmt.decode(data), decoded(data, fmt)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(found[~np.isnan(want)], want[~np.isnan(want)])


@every
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 13, FEW])
def test_products_of_few_tokens(fmt: BlockFormat, tokens: int) -> None:
    w, rng = packed(fmt, 5, BLOCKS * max(fmt.block_size, 16)), np.random.default_rng(1)
    x = rng.standard_normal((tokens, w.shape[1])).astype(np.float32)
    x[:, 3] *= 3e4  # a channel that is louder than all others
    plus = rng.standard_normal((tokens, 5)).astype(np.float32)
    true, wide = truth(w), x.astype(np.float64)
    assert_sums(linear(x, w), wide, true)
    assert_sums(project_add(plus, x, w), wide, true, plus)
    many = np.concatenate([x] * (FEW // tokens + 1))
    assert_sums(linear(many, w)[:tokens], wide, true)


@pytest.mark.parametrize("rows", [1, 2, 31, 64, 257])
def test_rows_of_any_number(rows: int) -> None:
    w, x = packed(Q4_1, rows, 96), np.random.default_rng(2).standard_normal((3, 96)).astype(np.float32)
    assert_sums(linear(x, w), x.astype(np.float64), truth(w))


@pytest.mark.parametrize("tokens", [1, 5])
def test_several_weights_behind_a_norm(tokens: int) -> None:
    rng, weights = np.random.default_rng(3), [packed(fmt, 32 + i, 256, i) for i, fmt in enumerate((Q4_K, Q8_0, F16))]
    x, by = rng.standard_normal((tokens, 256)).astype(np.float32), rng.standard_normal(256).astype(np.float32)
    wide = x.astype(np.float64)
    h = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * by
    for actual, w in zip(project(x, weights, (by, 1e-5)), weights, strict=True):
        assert_sums(actual, h, truth(w))
    np.testing.assert_array_equal(project(x, weights, (by, 1e-5))[0], project(x, weights[:1], (by, 1e-5))[0])


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("tokens", [1, 4, FEW + 1])
def test_gated_products(tokens: int, gelu: bool) -> None:
    rng, (gate, up) = np.random.default_rng(4), (packed(Q4_1, 48, 64, i) for i in range(2))
    x, by = rng.standard_normal((tokens, 64)).astype(np.float32), np.full(64, 4, np.float32)
    wide = x.astype(np.float64)
    h = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * by
    g, u = h @ truth(gate).T, h @ truth(up).T
    inner = 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3) if gelu else g
    with np.errstate(over="ignore"):
        want = g / (1 + np.exp(-inner)) * u
    actual = gated_project(x, gate, up, (by, 1e-6), gelu=gelu)
    np.testing.assert_allclose(actual, want, rtol=2e-4, atol=2e-5 * np.abs(want).max())


def test_products_do_not_depend_on_the_other_tokens() -> None:
    w, x = packed(Q4_K, 9, 512), np.random.default_rng(6).standard_normal((8, 512)).astype(np.float32)
    np.testing.assert_array_equal(linear(x, w)[:4], np.concatenate([linear(x[:4], w)]))


def test_products_without_a_compiled_loop_use_numpy() -> None:
    assert unit(IQ4_NL.decode, 64) is None
    assert packed(F32, 3, 24).found(native_rows) is None, "no whole vectors"
    assert few_rows(np.ones((1, 24), np.float32), packed(F32, 3, 24)) is None
    assert few_rows(np.ones((FEW + 1, 32), np.float32), packed(Q8_0, 3, 32)) is None
    assert few_rows(np.ones((1, 32)), packed(Q8_0, 3, 32)) is None, "float64"
    half = packed(Q8_0, 3, 32)
    half = Weight("half", Q8_0.times(0.5), half.shape, half.data)
    x = np.ones((1, 32), np.float32)
    np.testing.assert_allclose(linear(x, half), linear(x, packed(Q8_0, 3, 32)) / 2, rtol=1e-6)
    for fmt in FORMATS.values():
        width = 2 * max(fmt.block_size, 16)
        data = random_blocks(np.random.default_rng(0), fmt, 4 * width // fmt.block_size, 1.0)
        w = Weight("w", fmt, (4, width), data.reshape(4, -1))
        x = np.random.default_rng(1).standard_normal((2, width)).astype(np.float32)
        np.testing.assert_allclose(linear(x, w), x @ w.dense().T, rtol=1e-4, atol=1e-4)


def test_inputs_and_weights_of_any_layout() -> None:
    w, rng = packed(Q8_0, 6, 64), np.random.default_rng(7)
    x = rng.standard_normal((64, 2)).astype(np.float32).T
    x.flags.writeable = False
    assert_sums(linear(x, w), x.astype(np.float64), truth(w))
    every_other = Weight("w", Q8_0, (3, 64), w.data[::2])
    assert_sums(linear(x, every_other), x.astype(np.float64), truth(w)[::2])
    assert linear(x[:0], w).shape == (0, 6)


def test_norms_and_sums_of_any_layout_and_what_does_not_fit() -> None:
    """Kernels get addresses: they would read other numbers, or past the end, without a word."""
    w, x = packed(Q8_0, 6, 64), np.random.default_rng(8).standard_normal((3, 64)).astype(np.float32)
    by, plus = np.arange(128, dtype=np.float32)[::2] / 9, np.ones((3, 6))
    (want,) = project(x, (w,), (by.copy(), 1e-5))
    np.testing.assert_array_equal(project(x, (w,), (by, 1e-5))[0], want)
    np.testing.assert_array_equal(project(x, (w,), (by.astype(np.float64), 1e-5))[0], want)
    np.testing.assert_array_equal(project_add(plus, x, w), project_add(plus.astype(np.float32), x, w))
    heads, turn = x[:, None], (np.arange(3), Rope(1e4, 64))
    np.testing.assert_array_equal(
        head_norm_rope(heads, 64, by.astype(np.float64), 1e-5, *turn),
        head_norm_rope(heads, 64, by.copy(), 1e-5, *turn),
    )
    for wrong in (lambda: project(x[:, :32], (w,)), lambda: project_add(plus[:, :5], x, w)):
        with pytest.raises(AssertionError, match="against"):
            wrong()


def bytes_of(rows: int) -> Bytes:
    return Q8_0.encode(np.ones((rows, 32), np.float32))


def test_decoded_takes_where_to_write() -> None:
    out = np.zeros((2, 32), np.float32)
    assert decoded(bytes_of(2), Q8_0, out) is out
    np.testing.assert_allclose(out, 1, rtol=1e-3)
    assert decoded(bytes_of(0), Q8_0).shape == (0, 32)
    outs = few_products(np.ones((1, 32), np.float32), few_rows(np.ones((1, 32), np.float32), packed(Q8_0, 1, 32)))
    assert len(outs) == 1
