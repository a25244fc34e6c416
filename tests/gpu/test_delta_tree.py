"""delta_tree and delta_commit on the device against the NumPy twin in float64, and against reading each path alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from captured import capture
from compare import nmse, to_float64
from delta_layers import DECAYS, LARGE, PAIR, SMALL, Layer, layer, on_device

from sp.kernels import current_path
from sp.ops.delta import delta_tree as module
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta.delta_tree import DeltaStates, DeltaTrace, delta_commit, delta_tree
from sp.ops.input_tiles import InputTiles
from sp.quant import Q4_K, Math

ROUNDED, FINE, EXACT, NEAR = 5e-6, 2e-7, 1e-11, 1e-8
"""Bounds on the squared error: of y, in bf16 and in f16; of float32 results; of these for keys nearly all alike."""
COUNTS = [1, 2, 15, 16, 17, 23, 24, 25, 33, 48, 64]
ROOM = 64

Sizes = tuple[int, int, int]


def tree(nodes: int, kind: str) -> list[int]:
    """Parents: a chain, all children of the first, several roots, or at random."""
    if kind == "random":
        return [-1, *np.random.default_rng(nodes).integers(0, np.arange(1, nodes)).tolist()] if nodes > 1 else [-1]
    return {"chain": list(range(-1, nodes - 1)), "star": [-1, *[0] * (nodes - 1)], "roots": [-1] * nodes}[kind]


def lines(parents: list[int]) -> list[list[int]]:
    """The path to every node, itself last."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def words(parents: list[int]) -> np.ndarray:
    return np.array([sum(1 << j for j in line) for line in lines(parents)], np.uint64)


def room(sizes: Sizes, layers: int, place: Any, raw: Any = np.uint16, kind: Any = np.float32) -> DeltaTrace:
    """A trace in arrays that `place` makes."""
    key_heads, value_heads, dim = sizes
    heads = (key_heads, dim), (value_heads, dim), (value_heads,)
    return DeltaTrace(
        *(place((layers, ROOM, *shape), kind) for shape in heads),
        place((layers, ROOM, (2 * key_heads + value_heads) * dim), raw),
    )


def memory(arrays: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(conv=arrays["history"].copy(), recurrent=arrays["state"].copy())


def read(sizes: Sizes, arrays: dict[str, Any], seen: Any, trace: DeltaTrace, row: int = 0, reader: Any = None) -> Any:
    """The op on whatever arrays it is given."""
    params = DeltaParams(*(arrays[name] for name in ("conv", "a", "dt_bias", "norm")), 1e-6, *sizes)
    state = SimpleNamespace(conv=arrays["history"], recurrent=arrays["state"])
    return delta_tree(
        *(arrays[name] for name in ("qkv", "z", "alpha", "beta")), params, state, seen, trace, row, reader
    )


def exact(sizes: Sizes, arrays: Layer, parents: list[int]) -> tuple[Any, DeltaTrace, dict[str, Any]]:
    """The twin in float64: y, its trace, and the arrays it was given."""
    wide = {name: to_float64(a) for name, a in arrays.items()}
    trace = room(sizes, 1, np.empty, np.float64, np.float64)
    return read(sizes, wide, words(parents), trace), trace, wide


def place_path(line: list[int], place: Any) -> tuple[Any, Any]:
    """The path and its length on the device; behind it stands what must not be looked at."""
    return place((ROOM,), np.int32, np.array(line + [10**6] * (ROOM - len(line)))), place((1,), np.int32, [len(line)])


def compare(sizes: Sizes, arrays: Layer, parents: list[int], place: Any, bound: float = EXACT) -> None:
    """All that is written, and the state that the longest path leaves."""
    n = len(parents)
    y, wanted, wide = exact(sizes, arrays, parents)
    device = on_device(arrays, place)
    trace = room(sizes, 1, place)
    got = read(sizes, device, place((n,), np.uint64, words(parents)), trace)
    assert nmse(got, y) < max(ROUNDED, bound), "y"
    for name in ("k", "u", "g"):
        assert nmse(getattr(trace, name)[0, :n], getattr(wanted, name)[0, :n]) < bound, name
    np.testing.assert_array_equal(trace.inputs[0, :n].get(), arrays["qkv"])
    for name in ("k", "u", "g"):
        assert np.isnan(getattr(trace, name)[0, n:].get()).all(), f"{name} past the nodes"
    for name in ("history", "state"):
        np.testing.assert_array_equal(device[name].get(), arrays[name], err_msg=name)

    line = max(lines(parents), key=len)
    after, moved = memory(wide), SimpleNamespace(conv=device["history"], recurrent=device["state"])
    delta_commit(wanted, DeltaStates.of([after]), np.array(line), np.array([len(line)]))
    delta_commit(trace, DeltaStates.of([moved]), *place_path(line, place))
    np.testing.assert_array_equal(moved.conv.get(), after.conv)
    assert nmse(moved.recurrent, after.recurrent) < bound, "state"


@pytest.fixture
def careful(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`guarded`, used for what the op allocates as well."""
    import cupy

    monkeypatch.setattr(cupy, "empty", guarded)
    return guarded


@pytest.mark.parametrize("nodes", COUNTS)
@pytest.mark.parametrize("sizes", [PAIR, SMALL], ids=str)
def test_trees(sizes, nodes, careful) -> None:
    compare(sizes, layer(sizes, nodes), tree(nodes, "random"), careful)


@pytest.mark.parametrize("nodes", COUNTS)
def test_chains(nodes, careful) -> None:
    compare(SMALL, layer(SMALL, nodes), tree(nodes, "chain"), careful)


@pytest.mark.parametrize("nodes", [16, 23])
def test_real_heads(nodes, careful) -> None:
    compare(LARGE, layer(LARGE, nodes), tree(nodes, "random"), careful)


@pytest.mark.parametrize("nodes", [16, 23, 33, 64])
def test_one_block_a_head_as_where_there_are_no_clusters(nodes, careful, monkeypatch) -> None:
    built = module._built_for(nodes, SMALL[2], 0)
    monkeypatch.setattr(module, "_built_for", lambda *_: built | {"PARTS": 1})
    compare(SMALL, layer(SMALL, nodes), tree(nodes, "random"), careful)


@pytest.mark.parametrize("nodes", [5, 9, 16, 23, 32, 33, 48, 64])
@pytest.mark.parametrize("sizes", [PAIR, SMALL, LARGE], ids=str)
def test_tiles_for_the_next_product(sizes, nodes, careful) -> None:
    if current_path() != "sm_90a":
        pytest.skip("only the Hopper products take tiles")
    arrays, parents = layer(sizes, nodes), tree(nodes, "random")
    width = sizes[1] * sizes[2]
    reader = SimpleNamespace(format=Q4_K, shape=(5120, width), nbytes=5120 * Q4_K.row_bytes(width), math=Math.BF16)
    given = on_device(arrays, careful), careful((nodes,), np.uint64, words(parents)), room(sizes, 1, careful)
    got = read(sizes, *given, reader=reader)
    assert isinstance(got, InputTiles)
    values = got.values()
    assert nmse(values, exact(sizes, arrays, parents)[0]) < FINE
    means, wanted = got.means(), values.reshape(nodes, -1, 16).mean(axis=2)
    np.testing.assert_allclose(means, wanted, rtol=0, atol=1e-5 * abs(values).max())
    np.testing.assert_array_equal(values, read(sizes, *given, reader=reader).values())


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("kind", ["chain", "star", "roots"])
def test_decays_and_repeated_keys(decay, alike, kind, careful) -> None:
    arrays = layer(SMALL, 33, DECAYS[decay], alike)
    compare(SMALL, arrays, tree(33, kind), careful, NEAR if alike else EXACT)


@pytest.mark.parametrize("sizes", [PAIR, SMALL], ids=str)
@pytest.mark.parametrize("kind", ["chain", "random"])
def test_every_leaf_leaves_what_reading_its_path_alone_leaves(sizes, kind, guarded) -> None:
    import cupy

    parents = tree(16 if kind == "chain" else 40, kind)
    arrays = layer(sizes, len(parents))
    device = on_device(arrays, guarded)
    trace = room(sizes, 1, guarded)
    y = read(sizes, device, guarded((len(parents),), np.uint64, words(parents)), trace)
    params = DeltaParams(*(device[name] for name in ("conv", "a", "dt_bias", "norm")), 1e-6, *sizes)
    leaves = [line for line in lines(parents) if line[-1] not in parents]
    assert len(leaves) == 1 if kind == "chain" else len(leaves) > 10
    for line in leaves:
        moved, alone = memory(device), memory(device)
        delta_commit(trace, DeltaStates.of([moved]), *place_path(line, guarded))
        nodes = cupy.asarray(line)
        rows = [device[name][nodes] for name in ("qkv", "z", "alpha", "beta")]
        wanted = delta_mixer(*rows, params, alone, len(line))
        assert nmse(moved.recurrent, to_float64(alone.recurrent)) < EXACT
        np.testing.assert_array_equal(moved.conv.get(), alone.conv.get())
        assert nmse(y[nodes], to_float64(wanted)) < ROUNDED


@pytest.mark.parametrize("sizes", [PAIR, SMALL], ids=str)
def test_all_layers_move_on_at_once_and_nothing_kept_moves_nothing(sizes, guarded) -> None:
    layers, parents = 5, tree(40, "chain")
    given = [layer(sizes, 40, seed=row) for row in range(layers)]
    device = [on_device(arrays, guarded) for arrays in given]
    trace, seen = room(sizes, layers, guarded), guarded((40,), np.uint64, words(parents))
    for row in range(layers):
        read(sizes, device[row], seen, trace, row)
    states = DeltaStates.of([SimpleNamespace(conv=a["history"], recurrent=a["state"]) for a in device])
    delta_commit(trace, states, *place_path([], guarded))
    for arrays, placed in zip(given, device, strict=True):
        np.testing.assert_array_equal(placed["history"].get(), arrays["history"])
        np.testing.assert_array_equal(placed["state"].get(), arrays["state"])
    delta_commit(trace, states, *place_path(list(range(37)), guarded))
    for arrays, placed in zip(given, device, strict=True):
        _, wanted, wide = exact(sizes, arrays, parents)
        after = memory(wide)
        delta_commit(wanted, DeltaStates.of([after]), np.arange(37), np.array([37]))
        np.testing.assert_array_equal(placed["history"].get(), after.conv)
        assert nmse(placed["state"], after.recurrent) < EXACT


@pytest.mark.parametrize("kept", [1, 2, 3, 16, 17])
def test_the_history_of_short_paths_keeps_older_inputs(kept, careful) -> None:
    arrays = layer(PAIR, 17)
    device, trace = on_device(arrays, careful), room(PAIR, 1, careful)
    read(PAIR, device, careful((17,), np.uint64, words(tree(17, "chain"))), trace)
    states = DeltaStates.of([SimpleNamespace(conv=device["history"], recurrent=device["state"])])
    delta_commit(trace, states, *place_path(list(range(kept)), careful))
    wanted = np.concatenate([arrays["history"], to_float64(arrays["qkv"][:kept])])[-3:]
    np.testing.assert_array_equal(device["history"].get(), wanted)


def test_two_runs_agree_to_the_bit(careful) -> None:
    arrays, parents = layer(SMALL, 23), tree(23, "random")
    found = []
    for _ in range(2):
        device, trace = on_device(arrays, careful), room(SMALL, 1, careful)
        y = read(SMALL, device, careful((23,), np.uint64, words(parents)), trace)
        line = max(lines(parents), key=len)
        moved = SimpleNamespace(conv=device["history"], recurrent=device["state"])
        delta_commit(trace, DeltaStates.of([moved]), *place_path(line, careful))
        found.append([y.get(), trace.u[:, :23].get(), moved.recurrent.get()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.no_sanitizer  # it waits for every launch
def test_one_graph_serves_any_tree_and_path() -> None:
    import cupy

    nodes, layers = 23, 3
    given = [layer(LARGE, nodes, seed=row) for row in range(layers)]
    device = [{name: cupy.asarray(a) for name, a in arrays.items()} for arrays in given]
    params = DeltaParams(device[0]["conv"], device[0]["a"], device[0]["dt_bias"], device[0]["norm"], 1e-6, *LARGE)
    trace = DeltaTrace.new(layers, nodes, params, "cuda")
    states = DeltaStates.of([SimpleNamespace(conv=a["history"], recurrent=a["state"]) for a in device])
    seen, path, kept = cupy.zeros(nodes, np.uint64), cupy.zeros(ROOM, np.int32), cupy.zeros(1, np.int32)
    cases = [(tree(nodes, kind), line) for kind, line in (("random", -1), ("chain", 7), ("star", 3), ("random", 5))]

    def cycle() -> list[Any]:
        rows = [read(LARGE, arrays, seen, trace, row) for row, arrays in enumerate(device)]
        delta_commit(trace, states, path, kept)
        return rows

    def start(parents: list[int], node: int) -> None:
        line = lines(parents)[node]
        seen[...], kept[...] = cupy.asarray(words(parents)), len(line)
        path[: len(line)] = cupy.asarray(line, np.int32)
        for arrays, placed in zip(given, device, strict=True):
            placed["history"][...], placed["state"][...] = map(cupy.asarray, (arrays["history"], arrays["state"]))

    wanted = []
    for case in cases:
        start(*case)
        wanted.append([to_float64(y) for y in cycle()] + [to_float64(a["state"]) for a in device])
    graph = capture(cycle)
    for case, want in zip(cases, wanted, strict=True):
        start(*case)
        graph.replay()
        for got, one in zip([*graph.made, *(a["state"] for a in device)], want, strict=True):
            np.testing.assert_array_equal(to_float64(got), one)
