"""A Gated DeltaNet layer over a tree of tokens, and the update of its state along the accepted path.

With S the state before the tree, G_i the sum of the log decays g from the first node down to i,
``r_ij = exp(G_i - G_j)`` and j an ancestor of i (``j <= i``: or i itself):

    u_i = beta_i (v_i - exp(G_i) Sᵀ k_i - sum_{j < i} r_ij (k_j . k_i) u_j)
    o_i = (exp(G_i) Sᵀ q_i + sum_{j <= i} r_ij (k_j . q_i) u_j) / sqrt(head_dim)
    state after p = exp(G_p) S + sum_{j <= p} r_pj k_j u_jᵀ

So the pass reads S once and does not change it; k, u and g of the nodes suffice to update it along any path later.
Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024 (the same sums
along a chain); Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import capability, current_device, shared_bytes_per_block
from sp.kernels.specs import delta_tree as declared
from sp.ops.activations import silu
from sp.ops.delta.delta_mixer import DeltaParams, State, mixer_inputs, mixer_output
from sp.ops.matmul.chaining import tiles_for
from sp.quant import Weight

MOST_NODES = declared.NODES[-1]  # most nodes of a tree: a word of ancestors has one bit for each
ROOM = 8  # nodes of a trace are a multiple of this, so that each of its layers starts at a multiple of 16 bytes


@dataclass(frozen=True)
class DeltaTrace:
    """Record of a tree pass in every recurrent layer, written by `delta_tree` and read by `delta_commit`."""

    k: Floats  # float32 (layers, nodes, key_heads, head_dim), unit keys
    u: Floats  # float32 (layers, nodes, value_heads, head_dim), each node's update of the state along its key
    g: Floats  # float32 (layers, nodes, value_heads), log decays
    inputs: Floats  # float32 (layers, nodes, conv_dim), on the device bf16 (uint16), inputs of the convolution

    @classmethod
    def new(cls, layers: int, nodes: int, params: DeltaParams, device: Literal["cpu", "cuda"]) -> DeltaTrace:
        """Allocate the trace of trees of up to `nodes` nodes, at most 64, in `layers` layers of the sizes in
        `params`."""
        assert 1 <= nodes <= MOST_NODES, f"{nodes} nodes"
        nodes = -(-nodes // ROOM) * ROOM
        zeros, raw = (np.zeros, np.float32) if device == "cpu" else (import_cupy().zeros, np.uint16)
        heads = params.value_heads, params.head_dim
        return cls(
            zeros((layers, nodes, params.key_heads, params.head_dim), np.float32),
            zeros((layers, nodes, *heads), np.float32),
            zeros((layers, nodes, params.value_heads), np.float32),
            zeros((layers, nodes, len(params.conv)), raw),
        )


@dataclass(frozen=True)
class DeltaStates:
    """The states of all recurrent layers, which `delta_commit` updates together."""

    layers: tuple[State, ...]  # in the order of the layers of a `DeltaTrace`
    addresses: Any  # uint64 (layers, 2), on the device, addresses of `conv` and `recurrent`; None on the CPU

    @classmethod
    def of(cls, layers: Sequence[State]) -> DeltaStates:
        """Gather states whose arrays, on the device, do not move."""
        if not layers or not is_device(layers[0].conv):
            return cls(tuple(layers), None)
        addresses = [[state.conv.data.ptr, state.recurrent.data.ptr] for state in layers]  # type: ignore[attr-defined]
        return cls(tuple(layers), import_cupy().asarray(np.array(addresses, np.uint64)))


def delta_tree(
    qkv: Floats,
    z: Floats,
    alpha: Floats,
    beta: Floats,
    params: DeltaParams,
    state: State,
    seen: Any,
    trace: DeltaTrace,
    layer: int,
    reader: Weight | None = None,
) -> Floats:
    """Compute the output of `delta_mixer` for each node as if only its ancestors came before it. On the device one
    launch, which can be captured: 4 taps, head_dim 64 or 128. Products with the state and between keys have 22 bits.
    `state` and `seen` may be read while earlier launches of a graph still run, which therefore must not write them.
    Returns float32 (nodes, value_heads * head_dim), on the device bf16, or InputTiles if the product with `reader`
    takes them.

    Parameters
    ----------
    qkv : float32 (nodes, conv_dim), on the device bf16 (uint16), before the convolution
    z : float32 (nodes, value_heads * head_dim), on the device bf16
    alpha, beta : float32 (nodes, value_heads)
    state : State, before the tree; not changed
    seen : uint64 (nodes,)
        Bit j of word i: node j is an ancestor of node i, or i itself. Every node comes after its ancestors.
    trace : DeltaTrace, receives k, u, g and inputs of the nodes
    layer : int, index in `trace`
    reader : Weight of shape (out, value_heads * head_dim), optional
        The weight of the only consumer of the result, a `project_add`.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> one, zeros = np.ones((1, 1), np.float32), np.zeros((3, 1), np.float32)
    >>> params = DeltaParams(100 * np.eye(1, 4, 3, np.float32)[[0, 0, 0]], one[0], one[0], one[0], 1e-6, 1, 1, 1)
    >>> state = SimpleNamespace(conv=np.zeros((3, 3), np.float32), recurrent=np.zeros((1, 1, 1), np.float32))
    >>> trace = DeltaTrace.new(1, 4, params, "cpu")
    >>> rows = np.ones((2, 3), np.float32), np.full((2, 1), 50, np.float32), zeros[:2], zeros[:2] + 50
    >>> delta_tree(*rows, params, state, np.array([0b01, 0b11], np.uint64), trace, 0).round(3).ravel().tolist()
    [50.0, 50.0]
    """
    p, n = params, len(qkv)
    if is_device(qkv):
        out: Floats = _launch(qkv, z, alpha, beta, p, state, seen, trace, layer, reader)
        return out
    inputs = np.concatenate([state.conv, qkv])[windows(seen, p.conv.shape[1])]  # (nodes, taps, conv_dim)
    mixed = np.zeros_like(qkv)
    for tap in range(p.conv.shape[1]):
        mixed += inputs[:, tap] * p.conv[:, tap]
    q, k, v, g, strength = mixer_inputs(silu(mixed), alpha, beta, p)

    mask = (seen[:, None] >> np.arange(n, dtype=np.uint64)) & np.uint64(1) > 0  # (i, j)
    total = (mask @ g.astype(np.float64)).T  # G (heads, i) in float64, so that differences have float32's precision
    grown = np.exp(total)[..., None].astype(g.dtype)
    ratio = np.exp(np.where(mask, total[:, :, None] - total[:, None, :], -np.inf)).astype(g.dtype)  # (heads, i, j)
    heads = np.arange(p.value_heads) % p.key_heads
    Q, K = (np.moveaxis(x, 1, 0)[heads] for x in (q * q.dtype.type(1 / math.sqrt(p.head_dim)), k))  # (heads, i, d)
    within, above = (ratio * (x @ K.swapaxes(1, 2)) for x in (Q, K))
    b = strength.T[..., None]
    u = b * (np.moveaxis(v, 1, 0) - grown * (K @ state.recurrent))
    for i in range(1, n):
        u[:, i] -= (b[:, i, :, None] * above[:, i, None, :i] @ u[:, :i])[:, 0]
    o = grown * (Q @ state.recurrent) + within @ u

    trace.k[layer, :n], trace.u[layer, :n] = k, np.moveaxis(u, 0, 1)
    trace.g[layer, :n], trace.inputs[layer, :n] = g, qkv
    return mixer_output(np.ascontiguousarray(np.moveaxis(o, 0, 1)), z, p)


def delta_commit(trace: DeltaTrace, states: DeltaStates, path: Ints, kept: Ints) -> None:
    """Update the states of all layers, in place, along one path of the tree. On the device one launch, which can be
    captured; `path` and `kept` are read when it runs. `states`: of as many layers as `trace`; `path`: int64 (kept or
    more,), on the device int32, nodes, each the parent of the next; the first follows the old state; `kept`: int64
    (1,), on the device int32, the number of accepted nodes of `path`. With 0 nothing changes."""
    if states.addresses is not None:
        key_heads, head_dim = trace.k.shape[2:]
        layers, capacity, value_heads = trace.g.shape
        assert len(states.layers) == layers, f"{len(states.layers)} memories, a trace of {layers} layers"
        assert path.size >= capacity, f"a path of {path.size} for trees of {capacity} nodes"
        declared.DELTA_COMMIT.launch(
            (value_heads * head_dim // 64, layers),
            *(states.addresses, trace.k, trace.u, trace.g, trace.inputs, path, kept, capacity, key_heads, value_heads),
            defines={"HEAD_DIM": head_dim},
        )
        return
    nodes = path[: int(kept[0])]
    for layer, state in enumerate(states.layers):
        g, k, u = (array[layer, nodes] for array in (trace.g, trace.k, trace.u))
        heads = np.arange(g.shape[1]) % k.shape[1]
        after = np.cumsum(g[::-1], axis=0)[::-1]  # log decay from a node, including its own, to the end of the path
        share = np.exp(after - g)[..., None] * k[:, heads]  # (kept, value_heads, d)
        state.recurrent *= np.exp(g.sum(axis=0))[:, None, None]
        state.recurrent += np.moveaxis(share, 0, 2) @ np.moveaxis(u, 0, 1)
        state.conv[...] = np.concatenate([state.conv, trace.inputs[layer, nodes]])[len(nodes) :]


def _launch(
    qkv: Any,
    z: Any,
    alpha: Any,
    beta: Any,
    p: DeltaParams,
    state: State,
    seen: Any,
    trace: DeltaTrace,
    layer: int,
    reader: Weight | None,
) -> Any:
    n, value_dim = len(qkv), p.value_heads * p.head_dim
    channels = 2 * p.key_heads * p.head_dim + value_dim
    shapes = [a.shape for a in (qkv, z, alpha, beta, p.conv, state.conv, state.recurrent, seen)]
    gates, square = (n, p.value_heads), (p.value_heads, p.head_dim, p.head_dim)
    wanted = [(n, channels), (n, value_dim), gates, gates, (channels, 4), (3, channels), square, (n,)]
    assert shapes == wanted, f"{shapes}, not {wanted}"
    assert p.value_heads % p.key_heads == 0, f"{p.value_heads} value heads on {p.key_heads} key heads"
    assert p.head_dim in (64, 128), f"heads of {p.head_dim}"
    assert 1 <= n <= trace.g.shape[1], f"{n} nodes, a trace of {trace.g.shape[1]}"
    tiles = tiles_for(reader, n)
    y = import_cupy().empty((n, value_dim), np.uint16) if tiles is None else None
    defines = _built_for(n, p.head_dim, current_device())
    declared.DELTA_TREE.launch(
        (defines["PARTS"] * p.value_heads,),
        *(qkv, z, alpha, beta, p.conv, p.a, p.dt_bias, p.norm, state.conv, state.recurrent, seen),
        *((y, None, 0) if tiles is None else (None, tiles.data, tiles.held)),
        *(trace.k[layer], trace.u[layer], trace.g[layer], trace.inputs[layer], n, p.key_heads, p.value_heads, p.eps),
        defines=defines,
    )
    return y if tiles is None else tiles


@cache
def _built_for(nodes: int, head_dim: int, device: int) -> dict[str, int]:
    """Return the defines of the smallest kernel for so many nodes; ConfigError if shared memory is too small for it."""
    parts = 2 if head_dim == 128 and capability(device) >= (9, 0) else 1
    most = shared_bytes_per_block(device)
    built = [{"HEAD_DIM": head_dim, "NODES": size, "PARTS": parts} for size in declared.NODES]
    fitting = [defines for defines in built if declared.tree_smem(defines) <= most]
    for defines in fitting:
        if defines["NODES"] >= nodes:
            return defines
    most_nodes = fitting[-1]["NODES"] - 1
    raise ConfigError(f"a tree of {nodes} nodes does not fit this GPU; ask for a budget of at most {most_nodes}")


def windows(seen: Any, taps: int) -> Ints:
    """Return the inputs of the convolution at every node, oldest first: int64 (nodes, taps). Slots 0 to ``taps - 2``
    are the inputs before the tree, slot ``taps - 1 + i`` is that of node i. The nearest ancestor of a node is the last
    one before it.

    >>> windows(np.array([0b0001, 0b0011, 0b0101, 0b1101]), 4).tolist()
    [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 5, 6]]
    """
    old = taps - 1
    slots = np.empty((len(seen), taps), np.int64)
    for node, word in enumerate(seen):
        line = [*range(old), *(old + j for j in range(node + 1) if int(word) >> j & 1)]
        slots[node] = line[-taps:]
    return slots
