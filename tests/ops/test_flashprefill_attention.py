"""Sparse attention in NumPy against its definition and against dense attention: what a selection keeps, and costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flashprefill_loops import BLOCK, GROUPS, SIZES, paged, sample, slow_mean
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.ops.attention.attention import attention
from sp.ops.sparse.block_lists import causal, density, forced, lists_of, mask_of
from sp.ops.sparse.block_means import means_of
from sp.ops.sparse.block_selector import Dense
from sp.ops.sparse.block_sparse import block_sparse
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.ops.sparse.sparse_attention import sparse_attention


@given(sizes=SIZES, group=GROUPS, seed=st.integers(0, 99), correct=st.booleans())
@settings(max_examples=25, deadline=None)
def test_attention_over_lists_is_its_definition(sizes, group, seed, correct):
    n, tokens = sizes
    q, k, v = sample(n, tokens, 2 * group, 2, seed=seed)
    mask = causal(n, tokens)
    mask = mask & (np.random.default_rng(seed).random((2 * group, *mask.shape)) < 0.6) | forced(n, tokens, 0, 1, 0)
    means = (means_of(k), means_of(v)) if correct else None
    got = block_sparse(q, k, v, lists_of(mask), 0.3, means)
    rng = np.random.default_rng(seed)
    for row, head in zip(rng.integers(n, size=20), rng.integers(2 * group, size=20), strict=True):
        position, i, kv_head = tokens - n + row, row // BLOCK, head // group
        scores, values = [], []
        for t in range(position + 1):
            if mask[head, i, t // BLOCK]:
                scores.append(0.3 * q[row, head] @ k[t, kv_head])
                values.append(v[t, kv_head])
        first = tokens - n + BLOCK * i
        for j in range(mask.shape[2]) if correct else ():
            if not mask[head, i, j] and BLOCK * j + BLOCK - 1 <= first:
                scores.append(0.3 * q[row, head] @ slow_mean(k, j, kv_head) + math.log(BLOCK))
                values.append(slow_mean(v, j, kv_head))
        weights = np.exp(np.array(scores) - max(scores))
        want = weights @ np.array(values) / weights.sum()
        np.testing.assert_allclose(got[row, head], want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (127, 127), (300, 300), (200, 513)])
@pytest.mark.parametrize("selector", [FlashPrefill(0.0), Dense(), TopDensity(1.0), FlashPrefill(0.9, last_n=99)])
def test_everything_kept_is_dense(n, tokens, selector):
    """In float64 to its rounding; in float32 as near to that as any order of sums must come."""
    q, k, v = (a.astype(np.float32) for a in sample(n, tokens, 4, 2))
    at = paged(k, v)
    exact = attention(*(a.astype(np.float64) for a in (q, k, v)))
    wide, counts = sparse_attention(q.astype(np.float64), at, 8**-0.5, selector)
    room = rounding_room(q, k, v, 8**-0.5)
    assert (np.abs(wide - exact) <= 2 * room * 2.0 ** (24 - 53)).all()  # two ways to sum, of 53 bits each
    assert density(counts, n, tokens) == 1
    out, counts = sparse_attention(q, at, 8**-0.5, selector)
    assert out.dtype == np.float32
    assert (np.abs(out - exact) <= room).all()
    assert density(counts, n, tokens) == 1


def rounding_room(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """How far float32 attention may be off, (n, heads, d): which sums a BLAS makes depends on the CPU and on shapes.

    To first order, with the rounding unit u: a sum of m terms is off by at most m u times the sum of their sizes. That
    makes the score of key j off by e_j, its weight p_j by p_j e_j and the output by sum_j p_j e_j |v_j - out|; the sum
    of weighted values and that of the weights then add their own.
    """
    u, (n, heads, d), tokens = 2.0**-24, q.shape, len(k)
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    room = np.empty(q.shape)
    for head in range(heads):
        mine = head * k.shape[1] // heads
        score, sizes = q[:, head] @ k[:, mine].T * scale, np.abs(q[:, head]) @ np.abs(k[:, mine]).T * scale
        seen = np.arange(tokens) <= np.arange(tokens - n, tokens)[:, None]
        weight = np.exp(score - score.max(axis=1, keepdims=True)) * seen
        weight /= weight.sum(axis=1, keepdims=True)
        # The scale goes into q first; the reference is taken off; the power of two is right to two units.
        off = u * ((d + 3) * sizes + 2 * sizes.max(axis=1, keepdims=True) + 2)
        apart = np.abs(v[:, mine] - (weight @ v[:, mine])[:, None])
        room[:, head] = np.einsum("ij,ijd->id", weight * off, apart) + 2 * (tokens + 2) * u * (
            weight @ np.abs(v[:, mine])
        )
    return room


def planted(blocks: int) -> tuple[np.ndarray, ...]:
    """Queries that look for block 3, whose keys all point their way; the other blocks are flat."""
    rng = np.random.default_rng(0)
    q, k, v = (0.1 * rng.standard_normal((blocks * BLOCK, 1, 8)) for _ in range(3))
    q[..., 0] += 3
    k[3 * BLOCK : 4 * BLOCK, :, 0] += 3
    return q, k, v


def test_a_peaked_block_is_kept_and_flat_ones_are_dropped():
    q, k, v = planted(12)
    at = paged(k, v)
    bare = FlashPrefill(0.5, sink=0, window=1, last_n=0)
    mask = mask_of(bare.select(q, at, 1.0), 12)[0]
    assert [np.flatnonzero(row).tolist() for row in mask[5:]] == [[3, i] for i in range(5, 12)]
    out, counts = sparse_attention(q, at, 1.0, bare)
    assert density(counts) < 0.5
    want = block_sparse(q, k, v, lists_of(causal(len(q), len(k))[None]), 1.0)
    np.testing.assert_allclose(out, want, atol=0.02)


def test_a_forced_block_with_all_the_energy_hides_the_others_unless_it_is_excluded():
    q, k, v = planted(12)
    k[:BLOCK, :, 0] += 6  # the sink draws far more than block 3
    at = paged(k, v)
    options = FlashPrefill(0.5, sink=1, window=1, last_n=0)
    kept = [mask_of(replace(options, maximum=word).select(q, at, 1.0), 12)[0, 8] for word in ("all", "unforced")]
    assert [np.flatnonzero(row).tolist() for row in kept] == [[0, 8], [0, 3, 8]]


def test_mean_correction_brings_flat_attention_back():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1500, 2, 16)).astype(np.float32) * s for s in (0.2, 0.2, 1))
    v += np.repeat(rng.standard_normal((12, 1, 16)), BLOCK, axis=0)[:1500].astype(
        np.float32
    )  # blocks differ in their values
    at = paged(k, v)
    dense = attention(q, k, v)
    options = FlashPrefill(1.0, sink=1, window=1, last_n=0)
    errors = []
    for correct in (False, True):
        chosen = replace(options, mean_correction=correct)
        out, _ = sparse_attention(q, at, 0.25, chosen)
        errors.append(float(((out - dense) ** 2).sum() / (dense**2).sum()))
    assert errors[1] < errors[0] / 50


@pytest.mark.parametrize("first", [257, 384, 600])
def test_later_tokens_change_nothing(first):
    q, k, v = sample(700, 700, 2, 1)
    outs = []
    for noise in (0, 5):
        k[first:] += noise * np.random.default_rng(0).standard_normal(k[first:].shape)
        v[first:] += noise
        at = paged(k, v)
        options = FlashPrefill(0.5, sink=1, window=1, last_n=0)
        outs.append(sparse_attention(q, at, 0.3, options)[0])
    rows = first // BLOCK * BLOCK
    assert (outs[0][:rows] == outs[1][:rows]).all()
    assert not (outs[0][first:] == outs[1][first:]).all()
