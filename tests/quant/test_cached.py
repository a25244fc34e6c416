"""K5 and V4: what every code stands for, written out anew, and an encoder that no other choice of scale beats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.models.cache.kv_type import KVType
from sp.quant import BlockFormat
from sp.quant.cached import K4, K5, V4

both = pytest.mark.parametrize("fmt", [K5, K4, V4], ids=lambda fmt: fmt.name)
FINITE = 0xF8  # bytes of scales below it are numbers


def scale_of(byte: int) -> float:
    """Five bits of exponent, three of mantissa: the upper byte of a float16 without its sign."""
    exponent, mantissa = byte >> 3, byte & 7
    return math.ldexp(mantissa, -17) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 18)


def level(code: int, bits: int) -> float:
    """Return the value of a code at a scale of 1."""
    if bits == 6:
        return code - 31.5
    t = code - 7.5
    return t * (1 + t * t / 200)


def bits_of(fmt: BlockFormat, value: int) -> int:
    """Bits of the code of value `value` of 64."""
    return 6 if fmt is K5 and value < 32 else 4


def code_at(fmt: BlockFormat, block: Bytes, value: int) -> int:
    """The code of value `value`, bit by bit."""
    word, at = divmod(value, 8)
    byte = int(block[4 + 4 * word + at % 4])
    code = byte >> 4 if at >= 4 else byte & 15
    if bits_of(fmt, value) == 6:
        column, half, pair, right = value // 8, value % 8 // 4, value % 4 // 2, value % 2
        code |= (int(block[36 + 2 * column + pair]) >> 2 * (2 * half + right) & 3) << 4
    return code


def spelt_out(fmt: BlockFormat, block: Bytes) -> list[float]:
    """The 64 values of a block."""
    return [
        scale_of(int(block[value // 16])) * level(code_at(fmt, block, value), bits_of(fmt, value))
        for value in range(64)
    ]


def samples(groups: int = 200, seed: int = 0) -> Floats:
    """Blocks of many sizes, with loud values and without, (groups, 64)."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((groups, 64)) * np.exp(rng.uniform(-12, 8, (groups, 1)))
    values[::3, 5] *= 20
    values[1::5] = np.round(values[1::5])
    return values.astype(np.float32)


@both
def test_sizes(fmt: BlockFormat) -> None:
    assert fmt.bits_per_value == {K5: 5.5, K4: 4.5, V4: 4.5}[fmt]
    assert fmt.block_size == 64
    assert fmt.row_bytes(128) == {K5: 88, K4: 72, V4: 72}[fmt]
    assert (KVType("5bit").bits_per_value, KVType("4bit").bits_per_value) == (5.0, 4.5)


def test_keys_of_four_bits_have_the_layout_of_values() -> None:
    values = samples(seed=4)
    np.testing.assert_array_equal(K4.encode(values), V4.encode(values))
    assert (K4.name, V4.name) == ("K4", "V4")
    assert K4 != V4


@both
def test_every_byte_of_a_scale_is_what_the_docstring_says(fmt: BlockFormat) -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (FINITE, fmt.block_bytes)).astype(np.uint8)
    blocks[:, :4] = np.arange(FINITE)[:, None]
    want = np.array([spelt_out(fmt, block) for block in blocks])
    np.testing.assert_allclose(fmt.decode(blocks), want, rtol=3e-7)


@both
def test_every_code_at_every_place_is_what_the_docstring_says(fmt: BlockFormat) -> None:
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, (1000, fmt.block_bytes)).astype(np.uint8)
    blocks[:, :4] %= FINITE
    want = np.array([spelt_out(fmt, block) for block in blocks])
    np.testing.assert_allclose(fmt.decode(blocks), want, rtol=3e-7)
    for value in range(64):
        seen = {code_at(fmt, block, value) for block in blocks}
        assert seen == set(range(1 << bits_of(fmt, value)))


@both
def test_one_bit_of_the_codes_changes_one_value(fmt: BlockFormat) -> None:
    block = np.zeros(fmt.block_bytes, np.uint8)
    block[:4] = 0x78
    changed = set()
    for bit in range(32, 8 * fmt.block_bytes):
        other = block.copy()
        other[bit // 8] ^= 1 << bit % 8
        (at,) = np.flatnonzero(fmt.decode(other) != fmt.decode(block))
        changed.add((int(at), float(fmt.decode(other)[at])))
    assert len(changed) == 8 * fmt.block_bytes - 32


def candidates(peak: float, top: float) -> list[int]:
    """The byte whose scale is nearest to one that just holds the peak, three above it and one below."""
    exact = float(np.float16(peak / top))
    nearest = min(range(FINITE), key=lambda byte: (abs(scale_of(byte) - exact), -byte))
    return [min(max(nearest + step, 0), FINITE - 1) for step in range(-1, 4)]


def least_error(group: Floats, bits: int) -> float:
    """The least squared error of 16 values over the five scales, each value at the nearest level."""
    levels = np.array([level(code, bits) for code in range(1 << bits)])
    found = []
    for byte in candidates(float(np.abs(group).max()), float(levels[-1])):
        off = np.abs(group.astype(np.float64)[:, None] - scale_of(byte) * levels).min(1)
        found.append(float(np.square(off).sum()))
    return min(found)


@both
def test_no_other_of_the_five_scales_does_better(fmt: BlockFormat) -> None:
    values = samples()
    values = values[np.abs(values).max(1) > 1e-3]  # scales of which none is subnormal
    off = np.square(fmt.decode(fmt.encode(values)).astype(np.float64) - values).reshape(-1, 4, 16).sum(2)
    for block, errors in zip(values.reshape(-1, 4, 16), off, strict=True):
        for at, (group, error) in enumerate(zip(block, errors, strict=True)):
            best = least_error(group, bits_of(fmt, 16 * at))
            assert error <= best * (1 + 1e-4) + 1e-12 * float(np.square(group).sum())
            assert error >= best * (1 - 1e-4) - 1e-12 * float(np.square(group).sum())


@both
def test_decoded_values_are_encoded_without_loss(fmt: BlockFormat) -> None:
    values = samples(seed=3)
    once = fmt.decode(fmt.encode(values))
    again = fmt.decode(fmt.encode(once))
    exact = np.square(once).reshape(-1, 4, 16).sum(2)
    assert (np.square(again - once).reshape(-1, 4, 16).sum(2) <= 1e-6 * exact).mean() > 0.99


def test_errors_of_normal_values() -> None:
    values = np.random.default_rng(5).standard_normal((4000, 64)).astype(np.float32)
    error = {fmt.name: np.square(fmt.decode(fmt.encode(values)) - values) for fmt in (K5, V4)}
    assert error["K5"][:, :32].mean() < 4e-4
    assert error["V4"].mean() == pytest.approx(error["K5"][:, 32:].mean(), rel=0.05)
    assert error["V4"].mean() < 5.1e-3


@both
def test_zeros_stay_zeros(fmt: BlockFormat) -> None:
    packed = fmt.encode(np.zeros((3, 128), np.float32))
    assert not packed.reshape(-1, fmt.block_bytes)[:, :4].any(), "a scale of 0"
    assert not fmt.decode(packed).any()


@both
@pytest.mark.parametrize("sign", [1, -1])
def test_a_huge_value_is_held_and_spoils_its_own_group_alone(fmt: BlockFormat, sign: int) -> None:
    values = np.random.default_rng(6).standard_normal(64).astype(np.float32)
    before = fmt.decode(fmt.encode(values))
    values[17] = sign * 3e5
    actual = fmt.decode(fmt.encode(values))
    assert actual[17] == pytest.approx(values[17], rel=0.07)
    np.testing.assert_array_equal(np.delete(actual, range(16, 32)), np.delete(before, range(16, 32)))


@both
@pytest.mark.parametrize(
    ("value", "told"), [(np.nan, "NaN or Inf"), (np.inf, "NaN or Inf"), (1e30, "too large: a scale exceeds 57000")]
)
def test_values_without_a_code_are_refused_in_one_line(fmt: BlockFormat, value: float, told: str) -> None:
    values = np.ones((2, 64), np.float32)
    values[1, 40] = value
    with pytest.raises(ConfigError, match=told) as refused:
        fmt.encode(values)
    assert str(refused.value).startswith(fmt.name)
    assert "\n" not in str(refused.value)


@both
def test_rows_that_are_no_whole_blocks_are_refused(fmt: BlockFormat) -> None:
    with pytest.raises(ConfigError, match=r"block of 64"):
        fmt.encode(np.zeros((2, 96), np.float32))
    with pytest.raises(ConfigError, match=r"block of 64"):
        fmt.row_bytes(96)


@both
@given(values=arrays(np.float32, 64, elements=st.floats(-1e4, 1e4, width=32)))
def test_no_value_is_off_by_more_than_a_step_or_what_was_clipped(fmt: BlockFormat, values: Floats) -> None:
    packed = fmt.encode(values)
    actual = fmt.decode(packed)
    assert np.isfinite(actual).all()
    for at in range(4):
        group, got = values[16 * at : 16 * at + 16], actual[16 * at : 16 * at + 16]
        bits = bits_of(fmt, 16 * at)
        scale, top = scale_of(int(packed[at])), level((1 << bits) - 1, bits)
        inside = np.abs(group) <= scale * top
        step = scale * (1 if bits == 6 else level(15, 4) - level(14, 4))
        assert (np.abs(got - group)[inside] <= step * 0.5001 + 1e-7 * np.abs(group[inside])).all()
        np.testing.assert_allclose(np.abs(got)[~inside], scale * top, rtol=1e-6)
