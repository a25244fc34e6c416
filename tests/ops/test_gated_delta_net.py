"""gated_delta_net: the recurrence against plain loops, the chunked form against the recurrence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sp.ops import gated_delta_net, gated_delta_net_chunked, gated_delta_net_recurrent, l2norm

SIZES = [(1, 1), (3, 6), (4, 8)]  # key heads, value heads
LENGTHS = [1, 2, 63, 64, 65, 130, 1100]


def random_inputs(tokens: int, heads: tuple[int, int] = (2, 4), dims: tuple[int, int] = (16, 12), decay=0.3):
    """Float64 (q, k, v, g, beta, state) as a layer would make them."""
    rng = np.random.default_rng([tokens, *heads, *dims])
    q, k = (l2norm(rng.standard_normal((tokens, heads[0], dims[0])), 0.0) for _ in range(2))
    v = rng.standard_normal((tokens, heads[1], dims[1]))
    g = -rng.exponential(decay, (tokens, heads[1]))
    return q, k, v, g, rng.random((tokens, heads[1])), rng.standard_normal((heads[1], *dims))


def loops(q, k, v, g, beta, state):
    """The definition: one token, one head, one number at a time. Value head p reads key head p % key_heads."""
    tokens, key_heads, key_dim = q.shape
    out, S = np.zeros_like(v), state.copy()
    for t in range(tokens):
        for p in range(v.shape[1]):
            h = p % key_heads
            S[p] *= math.exp(g[t, p])
            for c in range(v.shape[2]):
                read = sum(S[p, r, c] * k[t, h, r] for r in range(key_dim))
                delta = beta[t, p] * (v[t, p, c] - read)
                for r in range(key_dim):
                    S[p, r, c] += k[t, h, r] * delta
                out[t, p, c] = sum(S[p, r, c] * q[t, h, r] for r in range(key_dim)) / math.sqrt(key_dim)
    return out, S


@pytest.mark.parametrize("heads", SIZES)
@pytest.mark.parametrize("run", [gated_delta_net_recurrent, gated_delta_net_chunked, gated_delta_net])
def test_equals_the_definition(heads, run) -> None:
    inputs = random_inputs(17, heads, (5, 3))
    state = inputs[-1].copy()
    for actual, expected in zip(run(*inputs), loops(*inputs), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-13)
    np.testing.assert_array_equal(inputs[-1], state, err_msg="the caller's state was changed")


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("decay", [0.01, 0.3, 30.0])
def test_chunked_equals_recurrent(tokens, decay) -> None:
    inputs = random_inputs(tokens, decay=decay)
    exact = gated_delta_net_recurrent(*inputs)
    for actual, expected in zip(gated_delta_net_chunked(*inputs), exact, strict=True):
        assert actual.dtype == np.float64
        np.testing.assert_allclose(actual, expected, atol=1e-12)
    single = [a.astype(np.float32) for a in inputs]
    for run in (gated_delta_net_chunked, gated_delta_net_recurrent):
        for actual, expected in zip(run(*single), exact, strict=True):
            assert actual.dtype == np.float32
            np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.filterwarnings("error")
def test_repeated_keys_stay_accurate_in_float32() -> None:
    """A prompt that repeats one token: powers of the chunk matrix would grow to 1e18 here."""
    q, k, v, g, beta, state = random_inputs(300)
    k[:] = k[:1]
    inputs = q, k, v, 0.001 * g, np.ones_like(beta), state
    exact = gated_delta_net_recurrent(*inputs)
    single = [a.astype(np.float32) for a in inputs]
    for actual, expected in zip(gated_delta_net_chunked(*single), exact, strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.filterwarnings("error")
def test_decay_that_underflows_leaves_finite_numbers() -> None:
    inputs = random_inputs(200, decay=1e4)
    single = [a.astype(np.float32) for a in inputs]
    for actual, expected in zip(gated_delta_net_chunked(*single), gated_delta_net_recurrent(*inputs), strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("cuts", [[1, 1, 298], [64, 64, 172], [100, 13, 187], [299, 1]])
def test_state_carries_a_sequence_across_calls(cuts) -> None:
    *inputs, state = random_inputs(300)
    whole, end = gated_delta_net_recurrent(*inputs, state)
    pieces, start = [], 0
    for cut in cuts:
        out, state = gated_delta_net(*(a[start : start + cut] for a in inputs), state)
        pieces.append(out)
        start += cut
    assert start == 300
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-12)
    np.testing.assert_allclose(state, end, atol=1e-12)
