"""Rounding to bytes and loud channels against definitions, and what products lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sp.errors import DeviceError
from sp.ops.byte_rows.e4m3 import near_exp2, round_e4m3
from sp.ops.byte_rows.loud import loud_channels, loudest
from sp.ops.byte_rows.rows import ROUNDED_TOKENS, ByteKind, byte_product, round_rows
from sp.ops.matmul.project import linear
from sp.quant import BF16, F32, Q4_K, Math, Weight

E4M3 = np.array(
    sorted({(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)} - {480.0} | {m / 512 for m in range(8)})
)
"""Every number of the format that is not negative, by its definition."""
NONE = np.array([], np.int64)


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


@pytest.mark.parametrize("kind", ByteKind)
def test_groups_are_rounded_by_their_largest(kind: ByteKind) -> None:
    x = BF16.decode(BF16.encode(np.random.default_rng(1).standard_normal((7, 768)).astype(np.float32)))
    r = round_rows(x, kind, NONE, True)
    assert [part.shape for part in r] == [x.shape, (7, 3), (7, 0)]
    groups = r.codes.reshape(7, 3, 256)
    assert (np.abs(groups).max(axis=-1) == kind.largest).all()
    error = np.abs(groups * r.scales[..., None] - x.reshape(7, 3, 256))
    step = r.scales[..., None] * (
        np.ones((7, 3, 256)) if kind is ByteKind.INT8 else np.maximum(np.abs(groups) / 8, 1 / 64)
    )
    assert (error <= 0.5001 * step).all()


def test_groups_without_numbers() -> None:
    x = np.zeros((1, 1280), np.float32)
    x[0, 256] = 2.0**-101
    x[0, 512], x[0, 768], x[0, 1024] = np.nan, np.inf, 2.0**101
    r = round_rows(x, ByteKind.INT8, NONE, True)
    assert not r.codes.any()
    np.testing.assert_array_equal(r.scales, [[0, 0, np.nan, np.nan, np.nan]])
    with pytest.raises(DeviceError, match="multiple of 256"):
        round_rows(np.zeros((1, 255), np.float32), ByteKind.INT8, NONE, True)


def test_outlier_channels_are_those_far_over_the_others() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 1024)).astype(np.float32)
    assert len(loud_channels(x)) == 0
    x[:, [5, 900]] *= 1000
    x[7, 33] = np.nan
    x[8, 34] = -np.inf
    assert loud_channels(x).tolist() == [5, 33, 34, 900]
    assert len(loud_channels(np.zeros((3, 256), np.float32))) == 0


def test_of_too_many_outlier_channels_the_largest_are_separate() -> None:
    peaks = np.ones(4096, np.float32)
    peaks[100:200] = 64  # a bin of a hundred, and thirty over it
    peaks[1000:1030] = 1024
    assert loudest(peaks).tolist() == [*range(100, 134), *range(1000, 1030)]


@pytest.mark.parametrize(("kind", "bound"), [(ByteKind.INT8, 0.0115), (ByteKind.E4M3, 0.042)])
@pytest.mark.parametrize("times", [1, 100, 1000])
def test_products_keep_what_quiet_channels_say(kind: ByteKind, bound: float, times: int) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((64, 2048)).astype(np.float32), rng.standard_normal((96, 2048)).astype(np.float32)
    some = [3, 700, 701, 2040]
    x[:, some] *= times
    loud = loud_channels(x)
    assert loud.tolist() == ([] if times == 1 else some)
    y = byte_product(round_rows(x, kind, loud, True), round_rows(w, kind, loud, False))
    exact = x.astype(np.float64) @ w.T
    quiet = x.copy()
    quiet[:, some] = 0
    aloud = BF16.decode(BF16.encode(x[:, some])).astype(np.float64) @ BF16.decode(BF16.encode(w[:, some])).T
    assert rms(y - exact) <= bound * rms(exact)
    if times > 1:
        assert rms(y - aloud - quiet.astype(np.float64) @ w.T) <= bound * rms(quiet @ w.T)


@pytest.mark.parametrize("fmt", [Q4_K, F32])
def test_linear_multiplies_prompts_in_what_the_weight_asks_for(fmt) -> None:
    rng = np.random.default_rng(4)
    w = Weight.from_floats("w", rng.standard_normal((40, 512)).astype(np.float32), fmt)
    x = rng.standard_normal((ROUNDED_TOKENS, 512)).astype(np.float32)
    marked = replace(w, math=Math.INT8)
    loud = loud_channels(x)
    want = byte_product(round_rows(x, ByteKind.INT8, loud, True), round_rows(w.dense(), ByteKind.INT8, loud, False))
    np.testing.assert_allclose(linear(x, marked), want, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(linear(x[:-1], marked), linear(x[:-1], w))
