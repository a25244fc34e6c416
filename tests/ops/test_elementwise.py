"""linear, embedding, norms, activations, rope, causal_conv1d and hadamard against their formulas in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.ops import (
    causal_conv1d,
    embedding,
    hadamard,
    l2norm,
    linear,
    rms_norm,
    rope,
    sigmoid,
    silu,
    softplus,
    swiglu,
)
from sp.ops import linear as linear_op
from sp.ops.rope import Rope
from sp.quant import F16, F32, Q4_0, Q8_0, Weight


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Random float32 values."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("fmt", [F32, F16, Q8_0, Q4_0], ids=lambda f: f.name)
@pytest.mark.parametrize(("tokens", "rows", "width"), [(1, 1, 32), (7, 13, 96), (33, 5, 64)])
def test_linear_multiplies_by_the_decoded_weight(fmt, tokens, rows, width) -> None:
    x, w = normal(tokens, width), Weight.from_floats("w", normal(rows, width, seed=1), fmt)
    dense = w.dense().astype(np.float64)
    expected = np.array([[math.fsum(a * b) for b in dense] for a in x.astype(np.float64)])
    actual = linear(x, w)
    assert actual.dtype == np.float32
    assert actual.shape == (tokens, rows)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_linear_in_slabs_equals_linear_at_once(monkeypatch) -> None:
    import sys

    x, w = normal(3, 64), Weight.from_floats("w", normal(37, 64, seed=1), Q8_0)
    at_once = linear_op(x, w)
    monkeypatch.setattr(sys.modules["sp.ops.matmul.project"], "SCRATCH_VALUES", 5 * 64)
    np.testing.assert_allclose(linear_op(x, w), at_once, atol=1e-5)
    monkeypatch.setattr(sys.modules["sp.ops.matmul.project"], "SCRATCH_VALUES", 1)
    np.testing.assert_allclose(linear_op(x, w), at_once, atol=1e-5)


def test_embedding_picks_rows_and_refuses_others() -> None:
    table = normal(11, 64)
    w = Weight.from_floats("table", table, F32)
    np.testing.assert_array_equal(embedding(np.array([10, 0, 10]), w), table[[10, 0, 10]])
    for bad in (11, -1):
        with pytest.raises(ConfigError, match="table"):
            embedding(np.array([0, bad]), w)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 4, 33)])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_norms_divide_by_root_mean_square_and_by_length(shape, eps) -> None:
    x, weight = normal(*shape, scale=3), normal(shape[-1], seed=1)
    rms, unit = np.empty(shape), np.empty(shape)
    for index in np.ndindex(*shape[:-1]):
        row = x[index].astype(np.float64)
        rms[index] = row / math.sqrt(math.fsum(row**2) / len(row) + eps) * weight
        unit[index] = row / math.sqrt(math.fsum(row**2) + eps)
    np.testing.assert_allclose(rms_norm(x, weight, eps), rms, rtol=3e-6)
    np.testing.assert_allclose(l2norm(x, eps), unit, rtol=3e-6)


def test_norm_of_zeros_is_zero() -> None:
    zeros = np.zeros((2, 8), np.float32)
    assert not rms_norm(zeros, np.ones(8, np.float32), 1e-6).any()
    assert not l2norm(zeros, 1e-6).any()


@pytest.mark.filterwarnings("error")
def test_activations_against_math_at_any_magnitude() -> None:
    x = np.array([-1e4, -200, -88.8, -30, -3.7, -1e-8, 0, 1e-8, 0.3, 5, 19.9, 20.1, 90, 1e4], np.float32)

    def logistic(v: float) -> float:
        return 1 / (1 + math.exp(-v)) if v > -700 else 0.0

    values = [float(v) for v in x]
    expected_sigmoid = [logistic(v) for v in values]
    np.testing.assert_allclose(sigmoid(x), expected_sigmoid, rtol=1e-6, atol=1e-38)
    np.testing.assert_allclose(silu(x), [v * s for v, s in zip(values, expected_sigmoid, strict=True)],
                               rtol=1e-6, atol=1e-35)  # fmt: skip
    expected = [math.log1p(math.exp(v)) if v < 30 else v for v in values]
    np.testing.assert_allclose(softplus(x), expected, rtol=1e-6, atol=1e-38)
    up = normal(len(x))
    np.testing.assert_allclose(swiglu(x, up), silu(x) * up, rtol=1e-6)
    assert all(f(x).dtype == np.float32 for f in (sigmoid, silu, softplus))


def rope_by_hand(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, pairing: str) -> np.ndarray:
    """Each pair as one complex number, times ``exp(i angle)``, in float64."""
    dim = 2 * len(frequencies)
    y = x.astype(np.float64)
    turn = np.exp(1j * positions[:, None, None].astype(np.float64) * frequencies)
    if pairing == "interleaved":
        y[..., :dim] = (np.ascontiguousarray(y[..., :dim]).view(np.complex128) * turn).view(np.float64)
    else:
        turned = (y[..., : dim // 2] + 1j * y[..., dim // 2 : dim]) * turn
        y[..., :dim] = np.concatenate([turned.real, turned.imag], axis=-1)
    return y


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rope_dim"), [(8, 8), (10, 4), (128, 32), (2, 2)])
def test_rope_at_any_position(head_dim, rope_dim, pairing) -> None:
    x = normal(6, 3, head_dim)
    positions = np.array([0, 1, 17, 131_071, 262_143, 1_000_003])
    want = rope_by_hand(x, positions, 1e7 ** (-np.arange(0, rope_dim, 2) / rope_dim), pairing)
    np.testing.assert_allclose(rope(x, positions, Rope(1e7, rope_dim, pairing)), want, atol=2e-6)


@dataclass(frozen=True)
class Stretched:
    """Every angle is divided by the same number, as by linear position interpolation."""

    factor: float

    def scale(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Divide frequencies by the factor, see `Scaling`."""
        return frequencies / self.factor


def test_a_scaling_changes_the_frequencies_and_all_that_follows_from_them() -> None:
    x, positions = normal(3, 2, 16), np.array([5, 70, 3000])
    stretched = Rope(1e4, 8, scaling=Stretched(5.0))
    np.testing.assert_array_equal(stretched.inverse_frequencies * 5, Rope(1e4, 8).inverse_frequencies)
    np.testing.assert_allclose(rope(x, positions, stretched), rope(x, positions // 5, Rope(1e4, 8)), atol=1e-5)
    np.testing.assert_allclose(stretched.turn_fractions() * 5.0, Rope(1e4, 8).turn_fractions(), rtol=1e-12)


def test_rope_of_negative_positions_undoes_it_and_products_depend_on_distance_only() -> None:
    q, k, by = normal(1, 2, 64), normal(1, 2, 64, seed=1), Rope(1e6, 64)
    far = np.array([200_000])
    np.testing.assert_allclose(rope(rope(q, far, by), -far, by), q, atol=1e-6)

    def product(p: int, r: int) -> np.ndarray:
        return (rope(q, np.array([p]), by) * rope(k, np.array([r]), by)).sum(-1)

    np.testing.assert_allclose(product(130_005, 130_000), product(5, 0), atol=2e-5)


@pytest.mark.parametrize(("tokens", "channels", "taps"), [(1, 3, 4), (2, 5, 4), (37, 6, 3), (5, 2, 1)])
def test_causal_conv1d_and_its_state(tokens, channels, taps) -> None:
    x, weight = normal(tokens, channels), normal(channels, taps, seed=1)
    state = normal(taps - 1, channels, seed=2)
    history = np.concatenate([state, x]).astype(np.float64)
    expected = np.zeros((tokens, channels))
    for t in range(tokens):
        for c in range(channels):
            s = sum(float(weight[c, j]) * history[t + j, c] for j in range(taps))
            expected[t, c] = s / (1 + math.exp(-s))
    y, after = causal_conv1d(x, weight, state)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_array_equal(after, np.concatenate([state, x])[tokens:])
    # Piece by piece, the state carries what the next piece needs.
    pieces, carried = [], state
    for t in range(tokens):
        piece, carried = causal_conv1d(x[t : t + 1], weight, carried)
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces), y, atol=1e-7)
    np.testing.assert_array_equal(carried, after)


@pytest.mark.parametrize("block", [1, 2, 32, 64])
def test_hadamard_matrix_entry_by_entry(block) -> None:
    x = normal(3, 2, 64)
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]) / math.sqrt(block)
    expected = np.einsum("...bj,ij->...bi", x.reshape(3, 2, 64 // block, block), matrix).reshape(x.shape)
    np.testing.assert_allclose(hadamard(x, block), expected, atol=2e-6)
    np.testing.assert_allclose(hadamard(hadamard(x, block), block), x, atol=2e-6)


@given(st.integers(-4, 100))
def test_hadamard_refuses_blocks_that_do_not_fit(block) -> None:
    x = np.ones((1, 24), np.float32)
    if block in (1, 2, 4, 8):
        assert hadamard(x, block).shape == x.shape
    else:
        with pytest.raises(ConfigError, match="power of two"):
            hadamard(x, block)
