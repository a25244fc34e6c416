"""delta_tree and delta_commit against the recurrence as the papers write it, path by path in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sp.errors import ConfigError
from sp.ops.delta import delta_tree as module
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta.delta_tree import DeltaStates, DeltaTrace, delta_commit, delta_tree

KEY_HEADS, VALUE_HEADS, DIM, TAPS, EPS = 2, 6, 8, 4, 1e-6
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
TREES = {
    "one": [-1],
    "chain": list(range(-1, 11)),
    "star": [-1, *[0] * 10],
    "roots": [-1] * 5,
    "tree": [-1, 0, 0, 1, 1, 2, 5, 3],
    "random": [-1, *np.random.default_rng(4).integers(0, np.arange(1, 40)).tolist()],
}
DECAYS = {"none": 0.0, "usual": 0.3, "deep": 300.0, "past float64": 1e6}


def lines(parents: list[int]) -> list[list[int]]:
    """The path to every node, itself last."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def words(parents: list[int]) -> np.ndarray:
    return np.array([sum(1 << j for j in line) for line in lines(parents)], np.uint64)


def memory(conv: np.ndarray, recurrent: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(conv=conv, recurrent=recurrent)


def layer(nodes: int, decay: float, dtype: type = np.float64, seed: int = 1):
    """Parameters, a state that is not zero and inputs for the nodes."""
    rng = np.random.default_rng([seed, nodes])

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    norm = 1 + draw(DIM) / 5
    params = DeltaParams(
        draw(CHANNELS, TAPS),
        -decay * np.abs(draw(VALUE_HEADS)),
        draw(VALUE_HEADS),
        norm,
        EPS,
        KEY_HEADS,
        VALUE_HEADS,
        DIM,
    )
    state = memory(draw(TAPS - 1, CHANNELS), draw(VALUE_HEADS, DIM, DIM) / 3)
    gates = draw(nodes, VALUE_HEADS), draw(nodes, VALUE_HEADS)
    return params, state, (draw(nodes, CHANNELS), draw(nodes, VALUE_HEADS * DIM), *gates)


def trace_of(layers: int, nodes: int, dtype: type = np.float64) -> DeltaTrace:
    """Poisoned, so that what is not written shows."""
    shapes = (KEY_HEADS, DIM), (VALUE_HEADS, DIM), (VALUE_HEADS,), (CHANNELS,)
    return DeltaTrace(*(np.full((layers, nodes, *shape), np.nan, dtype) for shape in shapes))


def replay(params: DeltaParams, state: SimpleNamespace, inputs, path: list[int]):
    """One path token by token: the last output, conv state and recurrent state."""
    qkv, z, alpha, beta = (x.astype(np.float64) for x in inputs)
    past, S, y = [*state.conv.astype(np.float64)], state.recurrent.astype(np.float64), np.zeros((VALUE_HEADS, DIM))
    for t in path:
        past.append(qkv[t])
        mixed = sum(params.conv[:, j].astype(np.float64) * past[j - TAPS] for j in range(TAPS))
        heads = (mixed / (1 + np.exp(-mixed))).reshape(-1, DIM)
        for p in range(VALUE_HEADS):
            q, k = heads[p % KEY_HEADS], heads[KEY_HEADS + p % KEY_HEADS]
            q, k = (x / math.sqrt(x @ x + EPS) for x in (q, k))
            S[p] *= math.exp(float(params.a[p]) * math.log1p(math.exp(alpha[t, p] + float(params.dt_bias[p]))))
            delta = (heads[2 * KEY_HEADS + p] - S[p].T @ k) / (1 + math.exp(-beta[t, p]))
            S[p] += np.outer(k, delta)
            o = S[p].T @ q / math.sqrt(DIM)
            gate = z[t].reshape(-1, DIM)[p]
            y[p] = o / math.sqrt((o @ o) / DIM + EPS) * params.norm * gate / (1 + np.exp(-gate))
    return y.ravel(), np.stack(past[1 - TAPS :]), S


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("tree", TREES)
def test_every_path_is_what_reading_it_alone_gives(tree, decay) -> None:
    parents = TREES[tree]
    params, state, inputs = layer(len(parents), DECAYS[decay])
    before = state.conv.copy(), state.recurrent.copy()
    trace = trace_of(3, len(parents) + 2)
    y = delta_tree(*inputs, params, state, words(parents), trace, 1)
    np.testing.assert_array_equal(state.conv, before[0])
    np.testing.assert_array_equal(state.recurrent, before[1])
    for line in lines(parents):
        out, conv, recurrent = replay(params, state, inputs, line)
        np.testing.assert_allclose(y[line[-1]], out, rtol=1e-9, atol=1e-11)
        moved = memory(state.conv.copy(), state.recurrent.copy())
        one = DeltaTrace(*(array[1:2] for array in (trace.k, trace.u, trace.g, trace.inputs)))
        delta_commit(one, DeltaStates.of([moved]), np.array([*line, 99]), np.array([len(line)]))
        np.testing.assert_array_equal(moved.conv, conv)
        np.testing.assert_allclose(moved.recurrent, recurrent, rtol=1e-9, atol=1e-11)


def test_layers_move_on_each_by_its_own_trace_and_nothing_kept_is_nothing_moved() -> None:
    parents, trace, states, wanted = TREES["tree"], trace_of(2, 8, np.float32), [], []
    for row in range(2):
        params, state, inputs = layer(8, 0.3, np.float32, seed=row)
        delta_tree(*inputs, params, state, words(parents), trace, row)
        wanted.append(replay(params, state, inputs, [0, 1, 3, 7])[1:])
        states.append(state)
    before = [(state.conv.copy(), state.recurrent.copy()) for state in states]
    arrays = [(state.conv, state.recurrent) for state in states]
    for kept, after in ((0, before), (4, wanted)):
        delta_commit(trace, DeltaStates.of(states), np.array([0, 1, 3, 7]), np.array([kept]))
        for state, (conv, recurrent) in zip(states, after, strict=True):
            np.testing.assert_allclose(state.conv, conv, rtol=1e-6)
            np.testing.assert_allclose(state.recurrent, recurrent, rtol=1e-4, atol=2e-6)
    for state, (conv, recurrent) in zip(states, arrays, strict=True):
        assert state.conv is conv
        assert state.recurrent is recurrent


def test_a_chain_is_delta_mixer() -> None:
    params, state, inputs = layer(12, 0.3, np.float32)
    trace = trace_of(1, 12, np.float32)
    y = delta_tree(*inputs, params, state, words(TREES["chain"]), trace, 0)
    alone = memory(state.conv.copy(), state.recurrent.copy())
    np.testing.assert_allclose(y, delta_mixer(*inputs, params, alone, 12), rtol=2e-4, atol=2e-5)
    delta_commit(trace, DeltaStates.of([state]), np.arange(12), np.array([12]))
    np.testing.assert_array_equal(state.conv, alone.conv)
    np.testing.assert_allclose(state.recurrent, alone.recurrent, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("kib", "most", "version", "parts"), [(227, 64, 90, 2), (163, 32, 80, 1), (99, 32, 86, 1)])
def test_small_gpus_take_smaller_trees(kib, most, version, parts, monkeypatch) -> None:
    monkeypatch.setattr(module, "shared_bytes_per_block", lambda device: kib << 10)
    monkeypatch.setattr(module, "capability", lambda device: divmod(version, 10))
    size_for = module._built_for.__wrapped__
    assert [size_for(n, 128, 0)["NODES"] for n in (1, 16, 17, most)] == [16, 16, 24, most]
    assert [size_for(16, dim, 0)["PARTS"] for dim in (128, 64)] == [parts, 1]
    if most < 64:
        with pytest.raises(ConfigError, match=f"a budget of at most {most - 1}$"):
            size_for(most + 1, 128, 0)
