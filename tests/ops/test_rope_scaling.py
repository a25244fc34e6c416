"""Linear and YaRN frequencies against their definitions, and rotations with an attention factor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sp.ops.attention.attention_heads import head_norm_rope, unrotate
from sp.ops.rope import LinearScaling, Rope, YarnScaling, rope

CASES = [  # base, dim, factor, original context, beta_fast, beta_slow
    (1e6, 128, 4.0, 32768, 32.0, 1.0),
    (1e7, 64, 4.0, 262144, 32.0, 1.0),
    (1e4, 128, 16.0, 4096, 32.0, 1.0),
    (5e5, 64, 2.5, 8192, 16.0, 2.0),
    (1e4, 32, 4.0, 64, 32.0, 1.0),  # no pair turns 32 times
    (1e4, 8, 8.0, 1 << 30, 32.0, 1.0),  # all pairs do
    (10.0, 6, 2.0, 100, 3.0, 3.0),
    (1e4, 16, 3.0, 3, 32.0, 1.0),  # no pair makes one turn
]


def turns(base: float, dim: int, context: int, pair: float) -> float:
    """Turns that a pair makes within so many positions."""
    return context * base ** (-2 * pair / dim) / (2 * math.pi)


def yarn_by_counting(base, dim, factor, original, beta_fast, beta_slow) -> np.ndarray:
    """Frequencies from the numbers of turns: the two edges are found by looking at one pair after the other."""
    pairs = range(-4 * dim, 4 * dim)
    fast = max([j for j in pairs if turns(base, dim, original, j) >= beta_fast], default=-4 * dim)
    slow = min([j for j in pairs if turns(base, dim, original, j) <= beta_slow], default=4 * dim)
    fast, slow = max(fast, 0), min(max(slow, 0), dim - 1)
    found = []
    for j in range(dim // 2):
        plain = base ** (-2 * j / dim)
        if j <= fast:
            share = 1.0
        elif j >= slow:
            share = 0.0
        else:
            share = (slow - j) / (slow - fast)
        found.append(share * plain + (1 - share) * plain / factor)
    return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_yarn_frequencies_by_counting_turns(case) -> None:
    base, dim, factor, original, beta_fast, beta_slow = case
    scaling = YarnScaling(factor, original, beta_fast=beta_fast, beta_slow=beta_slow)
    actual = Rope(base, dim, scaling=scaling).inverse_frequencies
    np.testing.assert_allclose(actual, yarn_by_counting(*case), rtol=1e-12)


def test_yarn_leaves_fast_pairs_divides_slow_ones_and_falls_between() -> None:
    plain = Rope(1e6, 128).inverse_frequencies
    ratio = plain / YarnScaling(4.0, 32768).scale(plain, 1e6)
    count = np.array([turns(1e6, 128, 32768, j) for j in range(64)])
    assert (count > 32).sum() == 24
    assert (ratio[count > 32] == 1).all()
    np.testing.assert_allclose(ratio[count < 1], 4, rtol=1e-12)
    assert (np.diff(ratio) >= -1e-12).all()
    assert ((ratio > 1.01) & (ratio < 3.99)).sum() > 10


def test_yarn_without_extrapolation_is_interpolation() -> None:
    plain = Rope(1e4, 64).inverse_frequencies
    none = YarnScaling(4.0, 4096, ext_factor=0.0)
    np.testing.assert_array_equal(none.scale(plain, 1e4), LinearScaling(4.0).scale(plain, 1e4))
    assert none.attention_factor == 1.0
    half = YarnScaling(4.0, 4096, ext_factor=0.5).scale(plain, 1e4)
    np.testing.assert_allclose(half, (YarnScaling(4.0, 4096).scale(plain, 1e4) + plain / 4) / 2, rtol=1e-12)


@pytest.mark.parametrize(("factor", "want"), [(1.0, 1.0), (4.0, 1.138629436111989), (32.0, 1.3465735902799727)])
def test_attention_factor_of_the_paper(factor, want) -> None:
    assert YarnScaling(factor, 4096).attention_factor == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("original", [1, 2, 1 << 40])
@pytest.mark.parametrize("base", [math.nextafter(1.0, 2.0), 1e4, 1e30])
@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_any_numbers_of_a_file_give_frequencies_of_at_most_one(original, base, beta) -> None:
    for betas in ((beta, 1.0), (32.0, beta), (beta, beta)):
        scaling = YarnScaling(7.0, original, beta_fast=betas[0], beta_slow=betas[1])
        rotary = Rope(base, 16, scaling=scaling)
        plain = Rope(base, 16).inverse_frequencies
        actual = rotary.inverse_frequencies
        assert ((actual <= plain * (1 + 1e-12)) & (actual >= plain / 7 * (1 - 1e-12))).all()
        assert rotary.turn_fractions().shape == (8,)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_the_magnitude_multiplies_what_is_turned_and_nothing_else(pairing) -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 16)).astype(np.float32)
    positions, plain = np.array([0, 3, 500, 100_000]), Rope(1e4, 8, pairing)
    loud = Rope(1e4, 8, pairing, magnitude=1.25)
    want = rope(x, positions, plain) * np.where(np.arange(16) < 8, np.float32(1.25), np.float32(1))
    np.testing.assert_allclose(rope(x, positions, loud), want, atol=1e-6)
    np.testing.assert_allclose(head_norm_rope(x, 16, None, 0.0, positions, loud), want, atol=1e-6)
    np.testing.assert_allclose(unrotate(want, positions, loud), x, atol=1e-6)


def test_without_a_magnitude_not_a_bit_changes() -> None:
    x = np.random.default_rng(1).standard_normal((3, 1, 8)).astype(np.float32)
    positions, by = np.array([1, 7, 123_456]), Rope(1e6, 8)
    angle = positions[:, None] * by.inverse_frequencies
    cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
    a, b = x[..., :4], x[..., 4:]
    want = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    np.testing.assert_array_equal(rope(x, positions, by), want)


def test_whole_turns_of_a_position_are_lost_however_many() -> None:
    """A damaged tensor of frequencies may contain such values."""

    class Fast:
        def scale(self, frequencies: np.ndarray, base: float) -> np.ndarray:
            return np.array([2 * math.pi * 1e40, math.pi / 2])

    assert Rope(1e4, 4, scaling=Fast()).turn_fractions().tolist() == [0, 1 << 62]
