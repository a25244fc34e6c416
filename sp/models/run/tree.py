"""TreeReader: a tree of guessed tokens in one pass of the target, and then only what came true.

Every node stands at the position its depth gives it and sees what the cache held before and its own ancestors.
Attention layers store keys and values of all nodes behind those of the cache; recurrent layers leave their state
alone and note what it takes to move it on. Keeping a path makes of this what reading the path alone would have left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.layer.delta import GatedDelta
from sp.models.layer.steps import Flow, Nodes
from sp.models.network.model import Model
from sp.models.run.chunked import checked_prompt
from sp.ops.array_module import array_module
from sp.ops.delta.delta_tree import MOST_NODES, DeltaStates, DeltaTrace, delta_commit
from sp.ops.feature_rows import store_features
from sp.ops.sampling.sample import argmax

__all__ = ["MOST_NODES", "LayerFeatures", "TreePass", "TreeReader", "ancestry"]


@dataclass(frozen=True)
class TreePass:
    """What the target made of a tree, where the target is. `features`, float32 (nodes, layers * hidden), on the device
    bf16 (uint16): outputs of the layers that were asked for, side by side, until the next tree is read."""

    logits: Floats  # float32 (nodes, vocab): of the token after every node
    choices: Ints  # int32 (nodes,): the likeliest token after every node
    features: Floats


class LayerFeatures:
    """Gathers the outputs of some layers, side by side, of tokens that pass through the model together. `layers`: in
    the order of their columns. `take`: is given the features (n, layers * hidden) of each run of tokens once its last
    layer is done: float32, on the device bf16 (uint16)."""

    def __init__(self, layers: Sequence[int], take: Callable[[Floats], None]) -> None:
        self._layers, self._take = tuple(layers), take
        self._found: Floats = np.empty((0, 0), np.float32)

    def __call__(self, layer: int, x: Floats) -> None:
        """See `sp.models.run.hooks.Hooks`."""
        if layer not in self._layers:
            return
        if layer == min(self._layers):
            self._found = feature_rows(len(x), len(self._layers) * x.shape[1], x)
        store_features(x, self._found, self._layers.index(layer) * x.shape[1])
        if layer == max(self._layers):
            self._take(self._found)


def feature_rows(rows: int, width: int, like: object) -> Floats:
    """Room for features where the array `like` is."""
    xp = array_module(like)
    found: Floats = xp.empty((rows, width), np.float32 if xp is np else np.uint16)
    return found


def ancestry(parents: Ints) -> Any:
    """Which nodes each node sees, its ancestors and itself: uint64 (nodes,), bit j of word i for node j."""
    words: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return np.array(words, np.uint64)


class TreeReader:
    """Reads trees that go on from what a cache holds, each followed by the path that is kept of it.

    `cache`: needs room for all nodes of a tree. `layers`: whose outputs are wanted as features. `most`: nodes of the
    largest tree, 64 at most. `features`, float32 (most, layers * hidden), on the device bf16 (uint16): of the nodes
    read last, always in the same place. Source: Miao et al., "SpecInfer", 2024 (tree attention in one pass).
    """

    def __init__(self, model: Model, cache: Cache, layers: Sequence[int] = (), most: int = MOST_NODES) -> None:
        self.model, self.cache, self.layers = model, cache, tuple(layers)
        recurrent = model.config.delta_layers
        self._states = DeltaStates.of([cache.state(layer) for layer in recurrent])
        self._trace: DeltaTrace | None = None
        if recurrent:
            mixer = model.trunk.blocks[recurrent[0]].mixer
            assert isinstance(mixer, GatedDelta), f"layer {recurrent[0]} is no recurrence"
            self._trace = DeltaTrace.new(len(recurrent), most, mixer.params, model.device)
        self._nodes = 0
        self.features = feature_rows(most, len(self.layers) * model.config.hidden, model.trunk.output_norm)

    def read_tree(self, ids: Ints, parents: Ints, positions: Ints) -> TreePass:
        """Read a tree; `commit_path` must follow before anything else. `ids`, `parents`, `positions`, int64 (nodes,):
        tokens, the index of each one's parent (less than its own; -1 for the first) and where RoPE puts them; on the
        host. PromptError: as `prefill`."""
        model = self.model
        ids, positions = checked_prompt(model, ids, positions, 1, 1, self.cache)
        assert (parents < np.arange(len(ids))).all(), f"parents {parents} stand behind their children"
        self._nodes = len(ids)
        return self.read(
            Nodes(model.place(ids, np.int32), model.place(positions), model.place(ancestry(parents), np.uint64))
        )

    def commit_path(self, path: Ints) -> None:
        """Leave in the cache, of the tree just read, the nodes of one path alone. `path`, int64 (kept,): nodes from the
        first one of the tree downwards, at least one; on the host."""
        place, whole = self.model.place, np.zeros(MOST_NODES, np.int64)
        whole[: len(path)] = path
        self.keep(self._nodes, place(whole, np.int32), place(np.array([len(path)]), np.int32))
        self.cache.count(len(path) - self._nodes)

    def read(self, nodes: Nodes) -> TreePass:
        """`read_tree` of nodes that are where the model is; a CUDA graph can capture it."""
        x, hidden = self.model.embed(nodes.ids), self.model.config.hidden
        features = self.features[: len(x)]
        flow = Flow(x, nodes.positions, self.cache, len(x), nodes=nodes, trace=self._trace)
        with self.cache.together(len(x)):
            for index, layer in enumerate(self.model.chained_layers):
                x = self.model.pass_layer(layer, flow)
                if index in self.layers:
                    store_features(self.model.whole(x), features, self.layers.index(index) * hidden)
        logits = self.model.head(x, flow.norm)
        return TreePass(logits, argmax(logits), features)

    def keep(self, nodes: int, path: Ints, kept: Ints) -> None:
        """`commit_path` of a tree of `nodes`, but for the counts of the host; a CUDA graph can capture it. `path`,
        int64 (64,), on the device int32: looked at up to `kept`. `kept`, int64 (1,), on the device int32: nodes of the
        path."""
        self.cache.move(nodes, path, kept)
        if self._trace is not None:
            delta_commit(self._trace, self._states, path, kept)
        self.cache.advance(-nodes, kept)
