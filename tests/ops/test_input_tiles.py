"""f16 input tiles in NumPy: their layout byte by byte, and what is left of small and of large tokens.

Bound on the NMSE of a token: values that keep the 11 bits of f16 are off by 2^-11 of themselves at most, which makes
4e-8 of many squares.
"""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.input_tiles import UNIT_SCALE, largest_scales, size_scales, tiles_of

F16 = 6e-8


def normal(tokens: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def by_token(found: np.ndarray, want: np.ndarray) -> np.ndarray:
    wide = want.astype(np.float64)
    return ((found - wide) ** 2).sum(axis=1) / (wide**2).sum(axis=1)


@pytest.mark.parametrize(("tokens", "width", "held"), [(1, 256, 8), (16, 512, 16), (19, 768, 24), (64, 1280, 64)])
def test_every_value_lies_where_the_kernels_look_for_it(tokens: int, width: int, held: int) -> None:
    """Places as input_tiles.cuh says them, one by one."""
    x = normal(tokens, width)
    scales = largest_scales(x)
    data = tiles_of(x, held, scales).data
    assert data.nbytes == (width // 64 + -(-width // 512)) * held * 128 + 4 * held
    behind = data.nbytes - 4 * held
    np.testing.assert_array_equal(data[behind:].view(np.float32)[:tokens], scales)

    def place(token: int, k: int) -> int:
        return k // 64 * held * 128 + token * 128 + ((k // 8 % 8) ^ (token % 8)) * 16 + k % 8 * 2

    halves = data[:behind].view(np.float16)
    want = (x / scales[:, None]).astype(np.float16)
    for token in range(tokens):
        assert all(halves[place(token, k) // 2] == want[token, k] for k in range(width))
        for k in range(0, width, 16):
            parts = [k // 512 * 64 + k // 256 % 2 * 32 + part * 16 + k // 16 % 16 for part in (0, 1)]
            high, low = (halves[(width * held * 2 + place(token, at)) // 2].astype(np.float64) for at in parts)
            mean = want[token, k : k + 16].astype(np.float64).mean()
            assert abs(high + low - mean) <= abs(mean) * 2.0**-21 + 2.0**-24


def test_a_small_token_next_to_a_large_one_keeps_its_bits() -> None:
    x = normal(6, 1024) * np.float32([1e6, 1e-3, 1.0, 1e-12, 1e12, 1e-30])[:, None]
    x[0, 7] = 2.0**28
    x[5, 9] = 0
    assert by_token(tiles_of(x, 8, largest_scales(x)).values(), x).max() < F16


def test_one_scale_for_all_tokens_loses_bits() -> None:
    """The reason for a scale of each token: 1/64 cuts the one off and rounds the other away."""
    x = normal(2, 1024) * np.float32([1e7, 1e-5])[:, None]
    lost = by_token(tiles_of(x, 8, np.full(2, UNIT_SCALE, np.float32)).values(), x)
    assert lost[0] > 0.1
    assert lost[1] > 1e-3


@pytest.mark.parametrize("size", [1e-2, 1.0, 37.0, 1e5])
def test_a_stream_may_grow_and_shrink_by_much_before_its_size_is_known_again(size: float) -> None:
    before = normal(4, 1024) * np.float32(size)
    scales = size_scales((before**2).mean(axis=1))
    grown = before * np.float32([1.0, 1e4, 1.0 / 16, 3.0])[:, None]
    grown[3, 100] = 1e6 * size
    assert by_token(tiles_of(grown, 8, scales).values(), grown).max() < 2 * F16


def test_scales_are_powers_of_two_that_fit() -> None:
    x = normal(200, 256) * np.float32(10.0) ** np.linspace(-37, 37, 200, dtype=np.float32)[:, None]
    scales = largest_scales(x)
    assert set(np.frexp(scales)[0]) == {0.5}
    inside = (np.abs(x).max(axis=1) > 2.0**-100) & (np.abs(x).max(axis=1) < 2.0**100)
    largest = (np.abs(x).max(axis=1) / scales)[inside]
    assert inside.sum() > 150
    assert largest.min() >= 2.0**14
    assert largest.max() < 2.0**15
    assert largest_scales(np.zeros((1, 256), np.float32))[0] > 0
    assert np.isfinite(1 / largest_scales(np.full((1, 256), np.inf, np.float32))[0])
    unknown = size_scales(np.array([0.0, 1.0, 3.99, 4.1], np.float32))
    np.testing.assert_array_equal(unknown, np.float32([64 * 2.0**-10, 64, 64, 128]))
