"""delta_checkpoints: a Gated DeltaNet layer over a tree of tokens, with the memory after every node; on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.activations import silu
from sp.ops.delta_mixer import DeltaParams, State, mixer_inputs, mixer_output
from sp.ops.gated_delta_net import gated_delta_net_recurrent


class DeltaNodes(NamedTuple):
    """Memory of the layer after every node, in float32 as `State` holds it: to go on from whichever is kept.

    Attributes
    ----------
    conv : float32 (nodes, taps - 1, conv_dim)
    recurrent : float32 (nodes, value_heads, head_dim, head_dim)
    """

    conv: Floats
    recurrent: Floats


def delta_checkpoints(
    qkv: Floats, z: Floats, alpha: Floats, beta: Floats, params: DeltaParams, state: State, parents: Ints
) -> tuple[Floats, DeltaNodes]:
    """What `delta_mixer` gives each node, were it read after its ancestors alone.

    Parameters
    ----------
    qkv : float32 (nodes, conv_dim)
    z : float32 (nodes, value_heads * head_dim)
    alpha, beta : float32 (nodes, value_heads)
    params : DeltaParams
    state : State
        Memory before the tree; left alone.
    parents : int64 (nodes,)
        Each less than its node's own index; -1 for those that follow `state`.

    Returns
    -------
    y : float32 (nodes, value_heads * head_dim)
    nodes : DeltaNodes

    Examples
    --------
    >>> import numpy as np
    >>> windows(np.array([-1, 0, 0, 2]), 3).tolist()  # slots 0 and 1 were read before the tree
    [[0, 1, 2], [1, 2, 3], [1, 2, 4], [2, 4, 5]]
    """
    p, n = params, len(qkv)
    inputs = np.concatenate([state.conv, qkv])[windows(parents, p.conv.shape[1])]  # (nodes, taps, conv_dim)
    mixed = np.zeros_like(qkv)
    for tap in range(p.conv.shape[1]):
        mixed += inputs[:, tap] * p.conv[:, tap]
    q, k, v, g, strength = mixer_inputs(silu(mixed), alpha, beta, p)
    out = np.empty_like(v)
    after = np.empty((n, *state.recurrent.shape), np.float32)
    for node, parent in enumerate(parents):
        before = after[parent] if parent >= 0 else state.recurrent
        one = slice(node, node + 1)
        out[one], after[node] = gated_delta_net_recurrent(q[one], k[one], v[one], g[one], strength[one], before)
    return mixer_output(out, z, p), DeltaNodes(inputs[:, 1:], after)


def windows(parents: Ints, taps: int) -> Ints:
    """Inputs that the convolution sees at every node, oldest first: int64 (nodes, taps).

    Slots 0 to ``taps - 2`` are the inputs before the tree, slot ``taps - 1 + i`` is that of node i.
    """
    old = taps - 1
    above = np.concatenate([np.arange(old) - 1, np.asarray(parents, np.int64) + old])
    slots = np.empty((len(parents), taps), np.int64)
    slots[:, -1] = np.arange(len(parents)) + old
    for tap in range(taps - 1, 0, -1):
        slots[:, tap - 1] = above[slots[:, tap]]
    return slots
