"""TreeReader: verifies a tree of draft tokens in one pass of the target, and then keeps only the accepted path.

Every node has the position that its depth gives it and sees the cached tokens and its own ancestors. Attention layers
store keys and values of all nodes after those of the cache; recurrent layers leave their state unchanged and record
what it takes to advance it. Committing a path leaves the cache as if only that path had been read.
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
    """Output of the target for a tree, on its device. `features`, float32 (nodes, layers * hidden), on the device bf16
    (uint16): outputs of the requested layers, concatenated; valid until the next tree is read."""

    logits: Floats  # float32 (nodes, vocab): of the token after every node
    choices: Ints  # int32 (nodes,): the likeliest token after every node
    features: Floats


class LayerFeatures:
    """Collects the outputs of some layers, concatenated, for tokens that pass the model together. `layers`: in the
    order of their columns. `on_features`: called with the features (n, layers * hidden) of each run of tokens once its
    last layer is done: float32, on the device bf16 (uint16)."""

    def __init__(self, layers: Sequence[int], on_features: Callable[[Floats], None]) -> None:
        self._layers, self._on_features = tuple(layers), on_features
        self._features: Floats = np.empty((0, 0), np.float32)

    def __call__(self, layer: int, x: Floats) -> None:
        """Collect a layer's output; to be used as `Hooks.after_layer`."""
        if layer not in self._layers:
            return
        if layer == min(self._layers):
            self._features = feature_rows(len(x), len(self._layers) * x.shape[1], x)
        store_features(x, self._features, self._layers.index(layer) * x.shape[1])
        if layer == max(self._layers):
            self._on_features(self._features)


def feature_rows(rows: int, width: int, template: object) -> Floats:
    """Allocate features where the array `template` is."""
    xp = array_module(template)
    features: Floats = xp.empty((rows, width), np.float32 if xp is np else np.uint16)
    return features


def ancestry(parents: Ints) -> Any:
    """Return the nodes that each node sees, its ancestors and itself: uint64 (nodes,), bit j of word i for node j."""
    words: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return np.array(words, np.uint64)


class TreeReader:
    """Reads trees that continue what a cache holds; after each, one path is committed.

    `cache`: needs room for all nodes of a tree. `layers`: layers whose outputs are returned as features. `most`: nodes
    of the largest tree, 64 at most. `features`, float32 (most, layers * hidden), on the device bf16 (uint16): of the
    nodes read last, always at the same address. Source: Miao et al., "SpecInfer", 2024 (tree attention in one pass).
    """

    def __init__(self, model: Model, cache: Cache, layers: Sequence[int] = (), most: int = MOST_NODES) -> None:
        self.model, self.cache, self.layers = model, cache, tuple(layers)
        recurrent = model.config.delta_layers
        self._states = DeltaStates.of([cache.state(layer) for layer in recurrent])
        self._trace: DeltaTrace | None = None
        if recurrent:
            mixer = model.weights.blocks[recurrent[0]].mixer
            assert isinstance(mixer, GatedDelta), f"layer {recurrent[0]} is no recurrence"
            self._trace = DeltaTrace.new(len(recurrent), most, mixer.params, model.device)
        self._nodes = 0
        self.features = feature_rows(most, len(self.layers) * model.config.hidden, model.weights.output_norm)

    def read_tree(self, ids: Ints, parents: Ints, positions: Ints) -> TreePass:
        """Read a tree; `commit_path` must follow before anything else. `ids`, `parents`, `positions`, int64 (nodes,):
        tokens, the index of each token's parent (less than its own; -1 for the first) and RoPE positions; on the host.
        PromptError: as `prefill`."""
        model = self.model
        ids, positions = checked_prompt(model, ids, positions, 1, 1, self.cache)
        assert (parents < np.arange(len(ids))).all(), f"parents {parents} do not precede their children"
        self._nodes = len(ids)
        return self.read_nodes(
            Nodes(model.place(ids, np.int32), model.place(positions), model.place(ancestry(parents), np.uint64))
        )

    def commit_path(self, path: Ints) -> None:
        """Keep, of the tree just read, only the nodes of one path in the cache. `path`, int64 (accepted,): nodes from
        the root downwards, at least one; on the host."""
        place, whole = self.model.place, np.zeros(MOST_NODES, np.int64)
        # A fixed length, so that one graph serves paths of any length.
        whole[: len(path)] = path
        self.commit(self._nodes, place(whole, np.int32), place(np.array([len(path)]), np.int32))
        # On the host: `read_nodes` counted every node.
        self.cache.count(len(path) - self._nodes)

    def read_nodes(self, nodes: Nodes) -> TreePass:
        """Run `read_tree` for nodes that are already on the model's device; a CUDA graph can capture it."""
        x, hidden = self.model.embed(nodes.ids), self.model.config.hidden
        features = self.features[: len(x)]
        flow = Flow(x, nodes.positions, self.cache, len(x), nodes=nodes, trace=self._trace)
        with self.cache.together(len(x)):
            for index, layer in enumerate(self.model.deferred_norm_layers):
                x = self.model.pass_layer(layer, flow)
                if index in self.layers:
                    store_features(self.model.full_stream(x), features, self.layers.index(index) * hidden)
        logits = self.model.head(x, flow.norm)
        return TreePass(logits, argmax(logits), features)

    def commit(self, nodes: int, path: Ints, accepted: Ints) -> None:
        """Run `commit_path` for a tree of `nodes`, without the counts of the host; a CUDA graph can capture it. `path`,
        int64 (64,), on the device int32: read up to `accepted`. `accepted`, int64 (1,), on the device int32: nodes of
        the path."""
        self.cache.move(nodes, path, accepted)
        if self._trace is not None:
            delta_commit(self._trace, self._states, path, accepted)
        self.cache.advance(-nodes, accepted)
