"""masked_attention and delta_tree against plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sp.models.delta_state import DeltaState
from sp.ops.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta_tree import delta_tree, windows
from sp.ops.kv_pages import kv_move
from sp.ops.masked_attention import masked_attention
from sp.quant import Q4_0

PARENTS = np.array([-1, 0, 0, 1, 1, 2, 5, 3])
PATHS = [[0, 1, 3, 7], [0, 1, 4], [0, 2, 5, 6]]
KEY_HEADS, VALUE_HEADS, DIM, TAPS = 2, 6, 8, 4


def test_masked_attention_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    n, keys, heads, kv_heads, d = 5, 9, 6, 2, 16
    q = rng.standard_normal((n, heads, d)).astype(np.float32) * 3
    k, v = (rng.standard_normal((keys, kv_heads, d)).astype(np.float32) for _ in range(2))
    visible = rng.random((n, keys)) < 0.5
    visible[:, 3] = True
    found = masked_attention(q, k, v, visible)
    for i in range(n):
        for h in range(heads):
            weight = [
                math.exp(float(q[i, h].astype(np.float64) @ k[j, h // 3]) / math.sqrt(d)) if visible[i, j] else 0.0
                for j in range(keys)
            ]
            expected = sum(w * v[j, h // 3].astype(np.float64) for j, w in enumerate(weight)) / sum(weight)
            np.testing.assert_allclose(found[i, h], expected, atol=2e-6)
    changed = v.copy()
    changed[~visible.any(axis=0) | ~visible[0]] = 1e30
    np.testing.assert_array_equal(masked_attention(q, k, changed, visible)[0], found[0])


@pytest.fixture(scope="module")
def layer():
    """Parameters, a state that is not zero and inputs for eight nodes."""
    rng = np.random.default_rng(1)
    n, value, channels = len(PARENTS), VALUE_HEADS * DIM, (2 * KEY_HEADS + VALUE_HEADS) * DIM

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    params = DeltaParams(
        draw(channels, TAPS), -np.abs(draw(VALUE_HEADS)), draw(VALUE_HEADS), 1 + draw(DIM) / 5, 1e-6, 2, 6, DIM
    )
    state = DeltaState(draw(TAPS - 1, channels), draw(VALUE_HEADS, DIM, DIM) / 3)
    return params, state, (draw(n, channels), draw(n, value), draw(n, VALUE_HEADS), draw(n, VALUE_HEADS))


def replay(params: DeltaParams, state: DeltaState, inputs, path: list[int]):
    """One path token by token in float64, as the papers write it: the last output, conv state and recurrent state."""
    qkv, z, alpha, beta = (x.astype(np.float64) for x in inputs)
    past = [row.astype(np.float64) for row in state.conv]
    S = state.recurrent.astype(np.float64).copy()
    for t in path:
        past.append(qkv[t])
        mixed = sum(params.conv[:, j].astype(np.float64) * past[j - TAPS] for j in range(TAPS))
        mixed = mixed / (1 + np.exp(-mixed))
        heads = mixed.reshape(-1, DIM)
        y = np.empty((VALUE_HEADS, DIM))
        for p in range(VALUE_HEADS):
            q, k = heads[p % KEY_HEADS], heads[KEY_HEADS + p % KEY_HEADS]
            q, k = (x / math.sqrt(x @ x + params.eps) for x in (q, k))
            S[p] *= math.exp(float(params.a[p]) * math.log1p(math.exp(alpha[t, p] + float(params.dt_bias[p]))))
            delta = (heads[2 * KEY_HEADS + p] - S[p].T @ k) / (1 + math.exp(-beta[t, p]))
            S[p] += np.outer(k, delta)
            o = S[p].T @ q / math.sqrt(DIM)
            gate = z[t].reshape(-1, DIM)[p]
            y[p] = o / math.sqrt((o @ o) / DIM + params.eps) * params.norm * gate / (1 + np.exp(-gate))
    return y.ravel(), np.stack(past[1 - TAPS :]), S


def test_every_node_of_a_tree_goes_on_from_its_parent(layer) -> None:
    params, state, inputs = layer
    before = state.conv.copy(), state.recurrent.copy()
    y, nodes = delta_tree(*inputs, params, state, PARENTS)
    np.testing.assert_array_equal(state.conv, before[0])
    np.testing.assert_array_equal(state.recurrent, before[1])
    for path in PATHS:
        for depth in range(1, len(path) + 1):
            out, conv, recurrent = replay(params, state, inputs, path[:depth])
            node = path[depth - 1]
            np.testing.assert_allclose(y[node], out, atol=2e-5)
            np.testing.assert_allclose(nodes.conv[node], conv, atol=1e-6)
            np.testing.assert_allclose(nodes.recurrent[node], recurrent, atol=1e-5)
    # Siblings that forgot whose children they are would agree with a chain through them.
    chained = replay(params, state, inputs, [0, 1, 2])[2]
    assert np.abs(nodes.recurrent[2] - chained).max() > 0.01


@pytest.mark.parametrize("path", PATHS)
def test_states_of_a_path_are_those_of_delta_mixer_bit_for_bit(layer, path) -> None:
    params, state, inputs = layer
    y, nodes = delta_tree(*inputs, params, state, PARENTS)
    alone = DeltaState(state.conv.copy(), state.recurrent.copy())
    out = delta_mixer(*(x[path] for x in inputs), params, alone, len(path))
    np.testing.assert_array_equal(nodes.recurrent[path[-1]], alone.recurrent)
    np.testing.assert_array_equal(nodes.conv[path[-1]], alone.conv)
    np.testing.assert_allclose(y[path], out, rtol=1e-6, atol=1e-7)


def test_windows_of_a_chain_are_consecutive() -> None:
    assert windows(np.arange(3) - 1, 4).tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


def test_moved_tokens_keep_their_packed_bytes() -> None:
    rng = np.random.default_rng(2)
    k_pages, v_pages = rng.integers(0, 256, (2, 6, 4, 2, Q4_0.row_bytes(32)), np.uint8)
    tables = np.array([[2, 0, 5], [4, 1, 3]])
    before = k_pages[tables].reshape(2, 12, -1), v_pages[tables].reshape(2, 12, -1)
    kv_move(
        k_pages, v_pages, tables, 11, 8, np.array([0, 2, 3, 7, 99]), 4
    )  # across pages, and from what is overwritten
    for pages, was in zip((k_pages, v_pages), before, strict=True):
        want = was[:, [0, 1, 2, 3, 5, 6, 10, 7, 8, 9, 10, 11]]
        np.testing.assert_array_equal(pages[tables].reshape(2, 12, -1), want)
