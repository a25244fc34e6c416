"""Rotation and rounding to bytes against definitions, and what products lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sp.errors import DeviceError
from sp.ops.byte_rows.e4m3 import near_exp2, round_e4m3
from sp.ops.byte_rows.loud import SAMPLE, loud_channels
from sp.ops.byte_rows.rows import ROUNDED_TOKENS, ByteKind, block_of, byte_product, rotated, round_rows, signs
from sp.ops.matmul.project import linear
from sp.quant import BF16, F32, Q4_K, Math, Weight

E4M3 = np.array(
    sorted({(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)} - {480.0} | {m / 512 for m in range(8)})
)
"""Every number of the format that is not negative, by its definition."""
NONE = np.empty(0, np.int64)  # no outlier channels


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))


def test_e4m3_is_the_nearest_number_of_its_table() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([E4M3, (E4M3[1:] + E4M3[:-1]) / 2, rng.uniform(0, 448, 500), rng.uniform(0, 0.02, 500)])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = round_e4m3(x)
    assert np.isin(np.abs(got), E4M3).all()
    assert (np.abs(got - x) <= np.abs(np.abs(x)[:, None] - E4M3).min(axis=1) + 1e-12).all()
    ties = ((E4M3[1:] + E4M3[:-1]) / 2).astype(np.float32)
    places = np.searchsorted(E4M3, round_e4m3(ties))
    assert (places % 2 == 0).all()  # halves to even: the table begins with an even one and they alternate


def test_numbers_near_powers_of_two() -> None:
    y = np.linspace(-12, 8.75, 5000).astype(np.float32)
    got = near_exp2(y)
    assert np.isin(got, E4M3).all()
    assert (np.diff(got) >= 0).all()
    normal = y >= -6
    ratio = got[normal] / np.exp2(y[normal])
    assert 0.95 < ratio.min() < 0.97
    assert 1.10 < ratio.max() < 1.12  # 1.0861 in the middle of octaves, and rounding
    assert not near_exp2(np.array([-7.1, -np.inf], np.float32)).any()
    whole = np.arange(-6, 9, dtype=np.float32)
    np.testing.assert_array_equal(near_exp2(whole), np.exp2(whole))


@pytest.mark.parametrize("width", [256, 768, 1536, 2560, 5120])
def test_rows_are_rotated_by_the_matrix(width: int) -> None:
    block = block_of(width)
    place = np.arange(block)
    odd = np.array([[bin(i & j).count("1") % 2 for j in place] for i in place])
    matrix = (1.0 - 2 * odd) * np.resize(signs(), width)[:block]
    assert abs(signs().sum()) < 100, "as many of either sign"
    x = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)
    got = rotated(x).reshape(3, -1, block)
    for at in range(0, width, block):
        turned = matrix if at % 1024 == 0 else (1.0 - 2 * odd) * signs()[at % 1024 : at % 1024 + block]
        np.testing.assert_allclose(got[:, at // block], x[:, at : at + block] @ turned.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(rotated(x) @ rotated(x).T, block * (x @ x.T), rtol=1e-4, atol=0.5 * block)


@pytest.mark.parametrize("kind", ByteKind)
def test_rows_are_rounded_by_their_largest(kind: ByteKind) -> None:
    x = BF16.decode(BF16.encode(np.random.default_rng(1).standard_normal((7, 768)).astype(np.float32)))
    r = round_rows(x, kind, NONE, True)
    assert [part.shape for part in r] == [x.shape, (7,), (7, 0)]
    assert (np.abs(r.codes).max(axis=1) == kind.largest).all()
    error = np.abs(r.codes * r.scales[:, None] - rotated(x) / 16)
    step = r.scales[:, None] * (1 if kind is ByteKind.INT8 else np.maximum(np.abs(r.codes) / 8, 1 / 64))
    assert (error <= 0.5001 * step).all()


def test_rows_without_numbers() -> None:
    x = np.zeros((5, 1280), np.float32)
    x[1, 256] = 2.0**-120
    x[2, 512], x[3, 768], x[4, 1024] = np.nan, np.inf, 2.0**101
    r = round_rows(x, ByteKind.INT8, NONE, True)
    assert not r.codes.any()
    np.testing.assert_array_equal(r.scales, [0, 0, np.nan, np.nan, np.nan])
    with pytest.raises(DeviceError, match="multiple of 256"):
        round_rows(np.zeros((1, 255), np.float32), ByteKind.INT8, NONE, True)


@pytest.mark.parametrize(("kind", "bound"), [(ByteKind.INT8, 0.0135), (ByteKind.E4M3, 0.042)])
@pytest.mark.parametrize("times", [1, 30, 100, 1000])
def test_products_lose_no_more_with_outliers(kind: ByteKind, bound: float, times: int) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((64, 2048)).astype(np.float32), rng.standard_normal((96, 2048)).astype(np.float32)
    some = [3, 700, 701, 2040]
    x[:, some] *= times
    loud = loud_channels(x)
    assert loud.tolist() == ([] if times == 1 else some)
    rows, columns = round_rows(x, kind, loud, True), round_rows(w, kind, loud, False)
    exact = x.astype(np.float64) @ w.T
    quiet = x.copy()
    quiet[:, loud] = 0
    # What the outlier channels give is exact but for BF16; the others lose as little as without them.
    assert rms(byte_product(rows, columns) - exact) <= bound * rms(quiet @ w.T) + 0.003 * rms(exact)


@pytest.mark.parametrize(("kind", "bound"), [(ByteKind.INT8, 0.02), (ByteKind.E4M3, 0.045)])
def test_outliers_of_single_tokens_are_spread(kind: ByteKind, bound: float) -> None:
    """Which are too rare to be outlier channels: without rotation the token would lose six times as much."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((64, 2048)).astype(np.float32), rng.standard_normal((96, 2048)).astype(np.float32)
    x[np.arange(64), rng.choice(2048, 64, replace=False)] *= 30
    y = byte_product(round_rows(x, kind, NONE, True), round_rows(w, kind, NONE, False))
    exact = x.astype(np.float64) @ w.T
    assert rms(y - exact) <= bound * rms(exact)


def test_a_sample_of_tokens_is_searched() -> None:
    x = np.ones((3 * SAMPLE, 256), np.float32)
    x[::3, 7] = 9
    x[1::3, 8] = 9
    assert loud_channels(x).tolist() == [7]


def test_what_inputs_share_is_spread() -> None:
    """Without signs a mean would be one large value of each block."""
    x = np.random.default_rng(3).standard_normal((8, 2048)).astype(np.float32)
    shared, plain = (round_rows(given, ByteKind.INT8, NONE, True).scales.mean() for given in (x + 3, x))
    assert shared < 4 * plain


@pytest.mark.parametrize("fmt", [Q4_K, F32])
def test_linear_multiplies_prompts_in_what_the_weight_asks_for(fmt) -> None:
    rng = np.random.default_rng(4)
    w = Weight.from_floats("w", rng.standard_normal((40, 512)).astype(np.float32), fmt)
    x = rng.standard_normal((ROUNDED_TOKENS, 512)).astype(np.float32)
    marked = replace(w, math=Math.INT8)
    x[:, [5, 400]] *= 100
    loud = loud_channels(x)
    want = byte_product(round_rows(x, ByteKind.INT8, loud, True), round_rows(w.dense(), ByteKind.INT8, loud, False))
    np.testing.assert_allclose(linear(x, marked), want, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(linear(x[:-1], marked), linear(x[:-1], w))
