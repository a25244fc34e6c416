"""argmax and sample in NumPy: ties, options, shares, and Philox against its published vectors."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.sampling.sample import Sampling, argmax, philox, sample


def draws(row: list[float], options: Sampling, count: int, seed: int = 0) -> list[int]:
    step = np.zeros(1, np.int64)
    logits = np.array([row], np.float32)
    return [int(sample(logits, options, np.array([seed]), step)[0]) for _ in range(count)]


@pytest.mark.parametrize(
    ("seed", "step", "words"),
    [(0, 0, (0x6627E8D5, 0xE169C58D)), (5 << 32 | 7, 9 << 32 | 1, None)],
)
def test_philox(seed, step, words) -> None:
    """Zero key and counter is a vector of Random123; the other checks the halves of key and counter."""
    actual = philox(seed, step)
    assert 0 <= actual < 1 << 64
    if words:
        assert (actual & 0xFFFFFFFF, actual >> 32) == words
    others = [
        philox(seed ^ 1 << 40, step),
        philox(seed ^ 1, step),
        philox(seed, step ^ 1 << 40),
        philox(seed, step ^ 1),
    ]
    assert len({actual, *others}) == 5


def test_argmax_takes_the_lowest_of_equals() -> None:
    assert argmax(np.array([[0.0, 5.0, 5.0, 5.0]], np.float32)).tolist() == [1]


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    row = np.random.default_rng(0).standard_normal(1000).tolist()
    assert draws(row, Sampling(), 30) == draws(row, Sampling(), 30)
    assert draws(row, Sampling(), 30) != draws(row, Sampling(), 30, seed=1)


def test_shares_follow_the_temperature() -> None:
    logits = np.log([0.6, 0.3, 0.1]).tolist()
    for temperature in (0.5, 1.0, 2.0):
        want = np.array([0.6, 0.3, 0.1]) ** (1 / temperature)
        found = np.bincount(draws(logits, Sampling(temperature), 4000), minlength=3) / 4000
        np.testing.assert_allclose(found, want / want.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_p=0.45), {1}),
        (Sampling(top_p=0.75), {1, 3}),
        (Sampling(top_p=0.85), {0, 1, 3}),
        (Sampling(top_k=3, top_p=0.85), {1, 3}),  # 0.5 + 0.25 of 0.875: the share is of what top_k left
        (Sampling(top_k=1, top_p=0.99), {1}),
        (Sampling(), {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_kept_tokens(options, kept) -> None:
    shares = [0.125, 0.5, 0.125, 0.25]
    assert set(draws(np.log(shares).tolist(), options, 300)) == kept


def test_ties_at_the_cut_fall_to_the_lowest_ids() -> None:
    assert set(draws([1.0] * 50, Sampling(top_k=3), 100)) == {0, 1, 2}
    assert set(draws([1.0] * 40, Sampling(top_p=0.125), 200)) == {0, 1, 2, 3, 4}


def test_far_logits_never_come_and_never_overflow() -> None:
    assert set(draws([-3e38, 0.0, 3e38], Sampling(0.01), 20)) == {2}
