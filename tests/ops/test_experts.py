"""Routing and experts against the formulas in float64, one token and one expert at a time."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.experts.expert_mlp import add_experts
from sp.ops.experts.routing import Routing, by_expert, route
from sp.ops.experts.stack import Stack
from sp.quant import F32, Q4_K, Q8_0, Weight


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of one token's logits, in float64."""
    e = np.exp(logits.astype(np.float64) - logits.max())
    return e / e.sum()


@pytest.mark.parametrize(("count", "used"), [(1, 1), (7, 3), (128, 8), (256, 8), (300, 300)])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("size", [0.01, 1.0, 40.0])
def test_route_is_the_formula(count, used, normalised, size) -> None:
    logits = (size * np.random.default_rng(count).standard_normal((37, count))).astype(np.float32)
    actual = route(logits, used, normalised=normalised)
    assert (actual.experts.dtype, actual.weights.dtype) == (np.int32, np.float32)
    for t, row in enumerate(logits):
        exact = probabilities(row)
        largest = np.sort(exact)[::-1][:used]
        assert len(set(actual.experts[t].tolist())) == used
        # Each is the one of its rank, but for those that are equal in float32.
        np.testing.assert_allclose(exact[actual.experts[t]], largest, rtol=2e-5, atol=1e-40)
        expected = largest / largest.sum() if normalised else largest
        np.testing.assert_allclose(actual.weights[t], expected, rtol=2e-5, atol=1e-40)


def test_ties_go_by_index() -> None:
    logits = np.array([[1, 3, 3, 1, 3, 1]] * 2, np.float32)
    assert route(logits, 4).experts.tolist() == [[1, 2, 4, 0]] * 2
    assert route(np.zeros((1, 9), np.float32), 5).experts.tolist() == [[0, 1, 2, 3, 4]]


def test_large_logits_stay_finite() -> None:
    actual = route(np.array([[1e30, -1e30, 88.0, 1e30]], np.float32), 2)
    assert actual.experts.tolist() == [[0, 3]]
    assert actual.weights.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("tokens", [0, 1, 65])
def test_sorting_keeps_every_slot_once(tokens) -> None:
    experts = route(np.random.default_rng(3).standard_normal((tokens, 12)).astype(np.float32), 5).experts
    order = by_expert(experts, 14)
    assert sorted(order.slots.tolist()) == list(range(5 * tokens))
    assert (order.starts[0], order.starts[-1], len(order.starts)) == (0, 5 * tokens, 15)
    for e in range(14):
        mine = order.slots[order.starts[e] : order.starts[e + 1]]
        assert (np.diff(mine) > 0).all()
        assert (experts.ravel()[mine] == e).all()


def exact_mlp(
    h: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
    routing: Routing,
    biases: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """In float64; matrices (experts, out, in). With biases gates are clamped."""
    out = np.zeros((len(h), down.shape[1]))
    for t, token in enumerate(h.astype(np.float64)):
        for e, weight in zip(routing.experts[t], routing.weights[t].astype(np.float64), strict=True):
            g, u = gate[e].astype(np.float64) @ token, up[e].astype(np.float64) @ token
            more, slope = 0.0, 1.0
            if biases is not None:
                g, u = np.minimum(g + biases[0][e], 7.0), np.clip(u + biases[1][e], -7.0, 7.0) + 1
                more, slope = biases[2][e], 1.702
            out[t] += weight * (down[e].astype(np.float64) @ (g / (1 + np.exp(-slope * g)) * u) + more)
    return out


@pytest.mark.parametrize("fmt", [F32, Q8_0, Q4_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("load", ["spread", "one", "single"])
def test_experts_are_the_formula(fmt, fused, load) -> None:
    """`one`: all tokens go to the same experts, and most experts have none; `single`: one token."""
    count, used, hidden, width, tokens = 6, 3, 256, 256, 1 if load == "single" else 33
    rng = np.random.default_rng(5)
    gate, up, down = (
        (rng.standard_normal((count, rows, columns)) / np.sqrt(columns)).astype(np.float32)
        for rows, columns in ((width, hidden), (width, hidden), (hidden, width))
    )

    def packed(values: np.ndarray) -> Weight:
        return Weight.from_floats("w", values.reshape(-1, values.shape[-1]), fmt)

    down_stack = Stack(packed(down), hidden, 0, hidden)
    if fused:
        both = packed(np.concatenate([gate, up], axis=1))
        gate_stack, up_stack = Stack(both, 2 * width, 0, width), Stack(both, 2 * width, width, width)
    else:
        gate_stack, up_stack = (Stack(packed(values), width, 0, width) for values in (gate, up))
    gate, up, down = (
        np.stack([stack[e].dense() for e in range(count)]) for stack in (gate_stack, up_stack, down_stack)
    )
    logits = rng.standard_normal((tokens, count)).astype(np.float32)
    routing = route(logits[:1].repeat(tokens, 0) if load == "one" else logits, used)
    h = rng.standard_normal((tokens, hidden)).astype(np.float32)
    h[:, 7] *= 30
    x, common = (rng.standard_normal((tokens, hidden)).astype(np.float32) for _ in range(2))
    mix = (rng.standard_normal(hidden) / 30).astype(np.float32)
    kept = x.copy()
    actual = add_experts(x, h, gate_stack, up_stack, down_stack, routing, (mix, common))
    share = 1 / (1 + np.exp(-(h.astype(np.float64) @ mix)))
    expected = x + exact_mlp(h, gate, up, down, routing) + share[:, None] * common
    assert (x == kept).all()
    assert 0.05 < share.min() < share.max() < 0.95 or tokens == 1
    assert np.abs(actual - expected).max() < 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("tokens", [1, 33])
def test_experts_with_biases_and_clamped_gates(tokens: int) -> None:
    count, used, hidden, width = 5, 3, 64, 96
    rng = np.random.default_rng(6)
    matrices = [
        rng.standard_normal((count, *shape)).astype(np.float32) / 4
        for shape in ((width, hidden), (width, hidden), (hidden, width))
    ]
    biases = [rng.standard_normal((count, rows)).astype(np.float32) for rows in (width, width, hidden)]
    stacks = [
        Stack(Weight.from_floats("w", m.reshape(-1, m.shape[-1]), F32), m.shape[1], 0, m.shape[1], bias)
        for m, bias in zip(matrices, biases, strict=True)
    ]
    bias = rng.standard_normal(count).astype(np.float32)
    logits = rng.standard_normal((tokens, count)).astype(np.float32)
    routing = route(logits, used, bias=bias)
    for t, row in enumerate((logits + bias).astype(np.float64)):
        assert routing.experts[t].tolist() == np.argsort(-row)[:used].tolist()
        chosen = np.exp(row[routing.experts[t]])
        np.testing.assert_allclose(routing.weights[t], chosen / chosen.sum(), rtol=1e-5)
    x, h = (3 * rng.standard_normal((tokens, hidden)).astype(np.float32) for _ in range(2))
    actual = add_experts(x, h, *stacks, routing, clamped=True)
    want = x + exact_mlp(h, *matrices, routing, (biases[0], biases[1], biases[2]))
    assert np.abs(actual - want).max() < 3e-6 * np.abs(want).max()
    gated = h @ matrices[0][0].T + biases[0][0]
    assert (gated > 7).any(), "some are cut"


def test_no_tokens() -> None:
    stack = Stack(Weight.from_floats("w", np.ones((4, 2), np.float32), F32), 2, 0, 2)
    routing = Routing(np.empty((0, 2), np.int32), np.empty((0, 2), np.float32))
    none = np.empty((0, 2), np.float32)
    assert add_experts(none, none, stack, stack, stack, routing).shape == (0, 2)
