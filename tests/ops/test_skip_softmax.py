"""Attention without tiles of little weight: left out is what a loop leaves out, and little."""

from __future__ import annotations

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.ops.attention.attention import attention
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, kv_append
from sp.ops.skip_softmax import ROWS, SkipSoftmax, skipped, skipping_attention
from sp.quant import F16


def inputs(n: int, tokens: int, heads: int, kv_heads: int, d: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Queries and keys that share a direction in some stretches, after a sink."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((rows, h, d)) for rows, h in ((n, heads), (tokens, kv_heads), (tokens, kv_heads)))
    direction = rng.standard_normal(d) / d**0.5
    q += 4 * direction
    k[:4] += 30 * direction
    k[(np.arange(tokens) // 150) % 5 == 1] += 20 * direction
    return q, k, v


def weights(q: np.ndarray, k: np.ndarray, head: int) -> np.ndarray:
    """Softmax of a head over all keys, in the type of `q`."""
    n, tokens, d = len(q), len(k), q.shape[2]
    score = q[:, head] @ k[:, head // (q.shape[1] // k.shape[1])].T * d**-0.5
    score[np.arange(tokens) > np.arange(tokens - n, tokens)[:, None]] = -np.inf
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def by_loop(weight: np.ndarray, keys: int, n: int, tokens: int, budget: float) -> tuple[np.ndarray, int]:
    """Weights (n, tokens) of a head that are kept, zero elsewhere, and how many tiles are; straight from the rule."""
    kept, read = np.zeros_like(weight), 0
    for first in range(0, n, ROWS):
        rows = range(first, min(first + ROWS, n))
        seen = tokens - n + rows[-1] + 1
        tiles = -(-seen // keys)
        met, lost = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0.0)
        for tile in (0, *range(tiles - 1, 0, -1)):
            span = slice(tile * keys, min((tile + 1) * keys, seen))
            mass = {row: weight[row, span].sum() for row in rows}
            for row in rows:
                met[row] += mass[row]
            whole = (tile + 1) * keys - 1 <= tokens - n + first
            little = all(
                mass[row] <= 0.2 * budget * met[row] and lost[row] + mass[row] <= budget * met[row] for row in rows
            )
            if tile and whole and little:
                for row in rows:
                    lost[row] += mass[row]
            else:
                kept[rows[0] : rows[-1] + 1, span] = weight[rows[0] : rows[-1] + 1, span]
                read += 1
    return kept, read


SIZES = [(300, 700, 4, 2, 64), (513, 513, 2, 1, 256), (65, 900, 6, 3, 128), (1, 400, 2, 2, 64)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("budget", [0.015, 0.2, 0.6])
def test_what_is_left_out_is_what_a_loop_leaves_out(sizes, budget) -> None:
    q, k, v = inputs(*sizes)
    n, tokens, heads, kv_heads, d = sizes
    got, counts = skipped(q, k, v, d**-0.5, budget)
    some = 0
    for head in range(heads):
        whole = weights(q, k, head)
        kept, read = by_loop(whole, 64 if d == 256 else 128, n, tokens, budget)
        want = kept / kept.sum(axis=1, keepdims=True) @ v[:, head // (heads // kv_heads)]
        np.testing.assert_allclose(got[:, head], want, rtol=1e-9, atol=1e-12)
        assert counts.read[head].sum() == read
        assert (1 - kept.sum(axis=1)).max() <= budget + 1e-12
        some += read
    assert counts.possible >= some
    assert n == 1 or some < counts.possible or budget < 0.1  # something is left out


def test_without_a_budget_it_is_attention() -> None:
    q, k, v = (each.astype(np.float32) for each in inputs(300, 700, 4, 2, 64))
    got, counts = skipped(q, k, v, 64**-0.5, 0.0)
    np.testing.assert_allclose(got, attention(q, k, v), rtol=1e-4, atol=1e-5)
    assert counts.read.sum() >= 0.99 * counts.possible  # weights that are exactly 0 may be left out


def test_planted_tiles_are_read() -> None:
    """Only the stretch that a query looks for, the first tile and those on the diagonal."""
    n = tokens = 1024
    q, k, v = (
        np.zeros((n, 1, 64), np.float32),
        np.zeros((tokens, 1, 64), np.float32),
        np.ones((tokens, 1, 64), np.float32),
    )
    q[:, 0, 0], k[:, 0, 0] = 8, -8
    k[256:384, 0, 0] = 8  # the third tile
    v[256:384] = 3
    got, counts = skipped(q, k, v, 1.0, 1e-3)
    assert counts.read[0].tolist() == [1, 1, 2, 2, 2, 2, *(3,) * 10]
    np.testing.assert_allclose(got[512:], 3, rtol=1e-6)


def test_pages_and_their_basis() -> None:
    q, k, v = (each.astype(np.float32) for each in inputs(200, 500, 4, 2, 64))
    pages = [np.zeros((4, PAGE_TOKENS, 2, F16.row_bytes(64)), np.uint8) for _ in range(2)]
    table = np.array([2, 0, 3, 1])
    for page, rows in zip(pages, (k, v), strict=True):
        kv_append(page, table, 0, rows, F16)
    at = PagedKV(*pages, table, 500, F16)
    got, _ = skipping_attention(q, at, 0.125, SkipSoftmax(0.02))
    want, _ = skipped(q, *at.gather(), 0.125, 0.02)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("budget", [-0.1, 1, float("nan"), 2])
def test_budgets_that_are_none(budget) -> None:
    with pytest.raises(ConfigError, match="skip is"):
        SkipSoftmax(budget)


def test_an_empty_prompt() -> None:
    pages = np.zeros((1, PAGE_TOKENS, 2, F16.row_bytes(64)), np.uint8)
    with pytest.raises(ConfigError, match="at least one"):
        skipping_attention(
            np.zeros((0, 4, 64), np.float32), PagedKV(pages, pages, np.zeros(1, int), 0, F16), 1.0, SkipSoftmax(0.1)
        )
