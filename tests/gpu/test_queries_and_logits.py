"""Queries that grow, gates that come beside them, heads without RoPE and logits within a bound, on the device."""

from __future__ import annotations

import cupy as cp
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64

from sp.ops.attention.attention_heads import head_norm_rope, unrotate
from sp.ops.attention.beside_gate import beside_gate
from sp.ops.attention.position_scale import PositionScale, scale_queries
from sp.ops.rope import Rope
from sp.ops.sampling.cap_logits import cap_logits

F16 = 2.0**-20
"""Squared error of rounding to f16."""


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize(("tokens", "heads"), [(1, 32), (130, 3), (700, 8)])
def test_queries_grow(tokens, heads, d, guarded) -> None:
    rng, by = np.random.default_rng([tokens, d]), PositionScale(0.1, 8192)
    q = rng.standard_normal((tokens, heads, d)).astype(np.float16)
    positions = np.sort(rng.integers(0, 1 << 20, tokens))
    want, got = q.astype(np.float32), guarded(q.shape, np.float16, q)
    scale_queries(want, positions, by)
    scale_queries(got, cp.asarray(positions), by)
    assert nmse(got.astype(cp.float32), want) < F16


def test_queries_of_the_first_positions_are_not_touched(guarded) -> None:
    q = np.random.default_rng(1).standard_normal((9, 4, 64)).astype(np.float16)
    got = guarded(q.shape, np.float16, q)
    scale_queries(got, cp.arange(9) + 91, PositionScale(5.0, 100))
    np.testing.assert_array_equal(cp.asnumpy(got), q)


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize(("tokens", "heads"), [(1, 32), (77, 5)])
def test_gates_beside_queries(tokens, heads, d, guarded, monkeypatch) -> None:
    rng = np.random.default_rng([tokens, d])
    q, gate = (rng.integers(0, 1 << 15, (tokens, heads, d)).astype(np.uint16) for _ in range(2))
    given = [guarded(one.shape, np.uint16, one) for one in (q, gate)]
    monkeypatch.setattr(cp, "empty", guarded)
    np.testing.assert_array_equal(cp.asnumpy(beside_gate(*given)), np.concatenate([q, gate], axis=2))


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_without_rope_are_only_normed(d, normed, guarded) -> None:
    rng, none = np.random.default_rng(d), Rope(1e4, 0, "interleaved")
    x, positions = to_bf16(rng.standard_normal((9, 3, d))), np.arange(9) * 1000
    weight = rng.standard_normal(d).astype(np.float32) if normed else None
    want = head_norm_rope(to_float64(x).astype(np.float32), d, weight, 1e-5, positions, none)
    placed = None if weight is None else cp.asarray(weight)
    got = head_norm_rope(guarded(x.shape, np.uint16, x), d, placed, 1e-5, cp.asarray(positions), none)
    assert nmse(got.astype(cp.float32), want) < F16
    before = got.copy()
    np.testing.assert_array_equal(cp.asnumpy(unrotate(got, cp.asarray(positions), none)), cp.asnumpy(before))


@pytest.mark.parametrize("cap", [None, 20.0])
@pytest.mark.parametrize("shape", [(1, 1), (1, 202_048), (3, 2001)])
def test_logits_within_a_bound(shape, cap, guarded) -> None:
    logits = (40 * np.random.default_rng(shape).standard_normal(shape)).astype(np.float32)
    got = cap_logits(guarded(shape, np.float32, logits), 0.196, cap)
    assert nmse(got, cap_logits(logits.astype(np.float64), 0.196, cap)) < 1e-12
