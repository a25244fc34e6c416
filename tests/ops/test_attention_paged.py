"""Ops over pages on the CPU: each is the composition it stands for, and angles stay exact far into a prompt."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops import hadamard, kv_append, rms_norm
from sp.ops.activations import sigmoid
from sp.ops.attention.attention import attention, attention_output, paged_attention
from sp.ops.attention.attention_heads import HeadNorms, attention_heads
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.rope import Rope, rope
from sp.quant import F32, Q4_0

HEADS, KV_HEADS, D = 6, 2, 128


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("base", "rope_dim"), [(1e6, 128), (1e7, 64), (1e4, 34)])
def test_turn_fractions_give_the_angle_a_million_tokens_in(base, rope_dim):
    position = 1_000_000
    with np.errstate(over="ignore"):
        left = (Rope(base, rope_dim).turn_fractions().view(np.uint64) * np.uint64(position)).view(np.int64)
    want = position * base ** (-np.arange(0, rope_dim, 2) / rope_dim)
    turned = left / 2**64 * 2 * np.pi
    assert np.abs(np.exp(1j * turned) - np.exp(1j * want)).max() < 1e-9


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize(("fmt", "rotate"), [(F32, False), (Q4_0, True)])
def test_attention_heads_is_norm_rope_and_append(fmt, rotate, pairing, normed):
    q, k, v = normal(5, HEADS, 2 * D), normal(5, KV_HEADS, D, seed=1), normal(5, KV_HEADS, D, seed=2)
    norms = HeadNorms(normal(D, seed=3), normal(D, seed=4), 1e-6) if normed else HeadNorms()
    positions, rotary, table = np.array([9, 3, 77, 0, 500]), Rope(1e6, 64, pairing), np.array([2, 0])
    pages = [np.zeros((3, 4, KV_HEADS, fmt.row_bytes(D)), np.uint8) for _ in range(4)]
    got = attention_heads(q, k, v, norms, positions, rotary, PagedKV(*pages[:2], table, 1, fmt, rotate))
    turned_q, turned_k = (
        rope(x[..., :D] if weight is None else rms_norm(x[..., :D], weight, 1e-6), positions, rotary)
        for x, weight in ((q, norms.q), (k, norms.k))
    )
    np.testing.assert_allclose(got, turned_q, rtol=2e-5, atol=1e-6)
    kv_append(pages[2], table, 1, turned_k, fmt, D if rotate else 0)
    kv_append(pages[3], table, 1, v, fmt, 64 if rotate else 0)
    (found, values), (wanted, plain) = ([fmt.decode(page) for page in two] for two in (pages[:2], pages[2:]))
    np.testing.assert_array_equal(values, plain)
    step = 0.3 if fmt is Q4_0 else 1e-6  # a code may be the next one
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=step)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_attention_output_rotates_back_and_gates(rotate, gated):
    k, v, q = normal(9, KV_HEADS, D), normal(9, KV_HEADS, D, seed=1), normal(3, HEADS, D, seed=2)
    wide, table = normal(3, HEADS, 2 * D, seed=3), np.array([1, 2, 0])
    pages = [np.zeros((3, 4, KV_HEADS, F32.row_bytes(D)), np.uint8) for _ in range(2)]
    for page, values, block in zip(pages, (k, v), (D, 64), strict=True):
        kv_append(page, table, 0, values, F32, block if rotate else 0)
    at = PagedKV(*pages, table, 9, F32, rotate)
    want = attention(q, k, v) * (sigmoid(wide[..., D:]) if gated else 1)
    got = attention_output(q, at, wide if gated else None)
    np.testing.assert_allclose(got, want.reshape(3, -1), atol=2e-6)
    inside = paged_attention(q, at)
    np.testing.assert_allclose(hadamard(inside, 64) if rotate else inside, attention(q, k, v), atol=2e-6)
    np.testing.assert_allclose(at.keys(), hadamard(k, D) if rotate else k, atol=2e-6)
