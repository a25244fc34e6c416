"""8-bit attention in NumPy: against exact attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sp.ops.attention.attention import attention
from sp.ops.attention.byte_attention.attend import byte_output
from sp.ops.attention.byte_attention.twin import byte_attention, key_centre, key_codes, query_codes, value_codes
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.hadamard import hadamard
from sp.ops.sparse.block_lists import lists_of
from sp.ops.sparse.block_sparse import block_sparse
from sp.quant import F32

SCALE = 128**-0.5
heads_of_both_sizes = pytest.mark.parametrize("d", [64, 128])


def inputs(n: int, tokens: int, heads: int, kind: str = "random", d: int = 128) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([n, tokens, heads, len(kind)])
    q = rng.standard_normal((n, heads, d)).astype(np.float32)
    k, v = rng.standard_normal((2, tokens, 2, d)).astype(np.float32)
    if kind == "shared":  # keys of trained models have much in common
        k += 20 * rng.standard_normal(d).astype(np.float32)
    elif kind == "sink":  # the first key takes most of every row
        q += 2 * k[:1].repeat(heads // 2, axis=1) / 4
        v[0] *= 0.01
    elif kind == "peaked":
        q *= 6
    return q, k, v


def relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want.astype(np.float64) ** 2)))


@heads_of_both_sizes
@pytest.mark.parametrize("kind", ["random", "shared", "sink", "peaked"])
def test_close_to_exact(kind: str, d: int) -> None:
    q, k, v = inputs(300, 500, 4, kind, d)
    exact = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    assert relative(byte_attention(q, k, v, d**-0.5), exact) < 0.05


def test_a_common_part_of_keys_costs_nothing_once_it_is_taken_away() -> None:
    q, k, v = inputs(300, 500, 4, "shared")
    exact = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    as_they_are = byte_attention(q, k, v, SCALE, centre=np.zeros((2, 128), np.float32))
    assert relative(byte_attention(q, k, v, SCALE), exact) < 0.5 * relative(as_they_are, exact)


def test_listed_blocks_alone_are_read() -> None:
    q, k, v = inputs(300, 700, 4)
    mask = np.random.default_rng(3).random((4, 3, 6)) < 0.5
    mask &= np.arange(6) <= (np.arange(3)[:, None] * 128 + 127 + 400) // 128
    mask[1, 2] = False
    lists = lists_of(mask)
    got = byte_attention(q, k, v, SCALE, lists)
    assert relative(got, block_sparse(q, k, v, lists, SCALE)) < 0.05
    assert not got[256:, 1].any()
    everything = lists_of(np.arange(6) <= (np.arange(3)[:, None] * 128 + 127 + 400) // 128 * np.ones((4, 1, 1)))
    np.testing.assert_allclose(byte_attention(q, k, v, SCALE, everything), byte_attention(q, k, v, SCALE), atol=1e-6)


@pytest.mark.parametrize(("n", "window"), [(300, 1), (300, 100), (129, 128), (500, 257), (1, 40), (300, 5000)])
def test_keys_before_a_window_are_not_read(n: int, window: int) -> None:
    q, k, v = inputs(n, 500, 4)
    rule = ScoreRule(window=window, scale=0.05)
    exact = attention(*(each.astype(np.float64) for each in (q, k, v)), rule)
    before = max(0, 500 - n - window + 1) // 128 * 128  # of whole pages
    k[:before], v[:before] = 1e4, 1e4  # one that is read or rounded with the others shows
    at = stored(k, v)
    assert relative(byte_output(q, at, rule=rule).reshape(q.shape), exact) < 0.05


def test_gaps_of_positions_count_in_a_window() -> None:
    q, k, v = inputs(200, 400, 4)
    reach = np.arange(200, dtype=np.int32) // 2 + 150
    rule = ScoreRule(window=300, reach=reach)
    exact = attention(*(each.astype(np.float64) for each in (q, k, v)), rule)
    assert relative(byte_output(q, stored(k, v), rule=rule).reshape(q.shape), exact) < 0.05


def test_codes_are_within_a_step() -> None:
    q, k, v = inputs(10, 300, 4)
    centre = key_centre(k)
    np.testing.assert_allclose(centre, k[:256].mean(axis=0), atol=1e-6)
    queries, keys, values = query_codes(q), key_codes(k, centre), value_codes(v)
    assert np.abs(queries.codes * queries.scales - q).max() <= 0.5001 * queries.scales.max()
    of_tokens = keys.scales.repeat(128, axis=0)[:300]
    assert np.abs(keys.codes * of_tokens + centre - k).max() <= 0.5001 * keys.scales.max()
    back = values.codes * values.scales
    assert np.abs(back - v)[np.abs(v) > 0.1].max() <= np.abs(v).max() / 16
    assert np.abs(back / v - 1)[np.abs(v) > 0.1].max() <= 1 / 16 + 1e-6


def test_nothing_of_zeros() -> None:
    zeros = np.zeros((200, 2, 128), np.float32)
    assert not byte_attention(zeros, zeros, zeros, SCALE).any()
    v = np.random.default_rng(0).standard_normal(zeros.shape).astype(np.float32)
    want = np.cumsum(v, axis=0) / np.arange(1, 201)[:, None, None]
    assert relative(byte_attention(zeros, zeros, v, SCALE), want) < 0.03


def stored(k: np.ndarray, v: np.ndarray) -> PagedKV:
    blocks = -(-len(k) // 128)
    pages = [np.zeros((blocks, 128, 2, 512), np.uint8) for _ in "kv"]
    at = PagedKV(pages[0], pages[1], np.arange(blocks), 0, F32)
    at.append(k, v)
    return replace(at, tokens=len(k))


def test_over_pages_rotated_or_not() -> None:
    q, k, v = inputs(200, 300, 2)
    at = stored(k, v)
    np.testing.assert_array_equal(byte_output(q, at), byte_attention(q, k, v, SCALE).reshape(200, 256))
    rotated = replace(stored(hadamard(k, 128), hadamard(v, 64)), rotated=True)
    exact = attention(q, k, v).reshape(200, 256)
    assert relative(byte_output(q, rotated), exact) < 0.05
