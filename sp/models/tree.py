"""read_tree and keep_path: a tree of guessed tokens in one pass of the target, and then only what came true.

Every node stands at the position its depth gives it and sees what the cache held before and its own ancestors.
Attention layers store keys and values of all nodes behind those of the cache; recurrent layers leave their state
alone and hand out one a node. `keep_path` makes of this what reading the path alone would have left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.models.blocks import Attention
from sp.models.cache import Cache
from sp.models.forward import checked
from sp.models.model import Model
from sp.models.qwen35 import GatedDelta
from sp.ops.delta_checkpoints import DeltaNodes
from sp.ops.gate_output import gate_output
from sp.ops.hadamard import hadamard
from sp.ops.kv_pages import kv_move
from sp.ops.masked_attention import masked_attention


@dataclass(frozen=True)
class TreePass:
    """What the target made of a tree.

    Attributes
    ----------
    logits : float32 (nodes, vocab)
        Of the token after every node.
    features : float32 (nodes, layers * hidden)
        Outputs of the layers that were asked for, side by side; no columns where none were.
    states : dict of int to DeltaNodes
        Memory of each recurrent layer after every node.
    """

    logits: Floats
    features: Floats
    states: dict[int, DeltaNodes]


class LayerFeatures:
    """Gathers the outputs of some layers, side by side, of tokens that pass through the model together.

    Parameters
    ----------
    layers : sequence of int
        In the order of their columns.
    take : callable
        Is given the features (n, layers * hidden) of each run of tokens once its last layer is done.

    Examples
    --------
    >>> features = LayerFeatures((0, 2), lambda found: print(found.tolist()))
    >>> for layer in range(4):
    ...     features(layer, np.full((1, 2), layer, np.float32))
    [[0.0, 0.0, 2.0, 2.0]]
    """

    def __init__(self, layers: Sequence[int], take: Callable[[Floats], None]) -> None:
        self._layers, self._take = tuple(layers), take
        self._found: Floats = np.empty((0, 0), np.float32)

    def __call__(self, layer: int, x: Floats) -> None:
        """See `sp.models.forward.After`."""
        if layer not in self._layers:
            return
        n, hidden = x.shape
        if layer == min(self._layers):
            self._found = np.empty((n, len(self._layers) * hidden), np.float32)
        at = self._layers.index(layer) * hidden
        self._found[:, at : at + hidden] = x
        if layer == max(self._layers):
            self._take(self._found)


def ancestry(parents: Ints) -> Bools:
    """Which nodes each node sees, its ancestors and itself: bool (nodes, nodes).

    Examples
    --------
    >>> ancestry(np.array([-1, 0, 0, 2])).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    """
    seen = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def read_tree(
    model: Model, ids: Ints, parents: Ints, positions: Ints, cache: Cache, layers: Sequence[int] = ()
) -> TreePass:
    """Read a tree of tokens that goes on from what a cache holds; `keep_path` must follow before anything else.

    Parameters
    ----------
    model : Model
        On the CPU.
    ids, parents, positions : int64 (nodes,)
        Tokens, the index of each one's parent (less than its own; -1 for the first) and where RoPE puts them.
    cache : Cache
        Needs room for all nodes.
    layers : sequence of int
        Whose outputs are wanted as features.

    Returns
    -------
    TreePass

    Raises
    ------
    PromptError
        As `prefill`.

    References
    ----------
    Miao et al., "SpecInfer", 2024 (tree attention in one pass).
    """
    assert model.device == "cpu", "trees are read on the CPU"
    ids, positions = checked(model, ids, positions, cache, 1, 1)
    assert (parents < np.arange(len(ids))).all(), f"parents {parents} stand behind their children"
    visible = np.concatenate([np.ones((len(ids), cache.tokens), bool), ancestry(parents)], axis=1)
    taken: list[Floats] = [np.empty((len(ids), 0), np.float32)]
    features = LayerFeatures(layers, taken.append)
    states: dict[int, DeltaNodes] = {}
    x = model.embed(ids)
    for index, block in enumerate(model.trunk.blocks):
        mixer, norm = block.mixer, (block.attn_norm, block.eps)
        if isinstance(mixer, Attention):
            q, gate = mixer.enter(x, norm, positions, cache, len(x))
            x = mixer.leave(x, _attend(cache, index, q, gate, visible))
        else:
            assert isinstance(mixer, GatedDelta), f"layer {index} cannot read a tree"
            x, states[index] = mixer.read_tree(x, norm, parents, cache)
        x = block.feed_forward(x)
        features(index, x)
    return TreePass(model.head(x), taken[-1], states)


def keep_path(model: Model, cache: Cache, seen: TreePass, path: Ints) -> None:
    """Leave in the cache, of the tree just read, the nodes of one path alone.

    Parameters
    ----------
    path : int64 (kept,)
        Nodes from the first one of the tree downwards, at least one.
    """
    nodes = len(seen.logits)
    for layer in model.config.attention_layers:
        at = cache.stored(layer)
        kv_move(at.k, at.v, at.table[None], at.tokens, nodes, path, len(path))
    for layer, after in seen.states.items():
        state = cache.state(layer)
        state.conv, state.recurrent = after.conv[path[-1]].copy(), after.recurrent[path[-1]].copy()
        state.tokens += nodes
    cache.count(len(path) - nodes)


def _attend(cache: Cache, layer: int, q: Floats, gate: Floats | None, visible: Bools) -> Floats:
    """As `Cache.attend`, under a mask."""
    k, v = cache.gather(layer)
    if cache.rotate:
        q = hadamard(q, cache.key_block)
    return gate_output(masked_attention(q, k, v, visible), gate, cache.rotate)
