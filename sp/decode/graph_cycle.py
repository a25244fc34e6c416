"""`GraphCycle`, on the device in CUDA graphs, and `new_cycle`: the cycle for where a model is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.decode.base import Tree
from sp.decode.cycle import Cycle, Guesser
from sp.models import Cache, Model
from sp.models.layer.steps import Nodes
from sp.models.run.captured_graph import CapturedGraph, CaptureStream, PinnedStaging
from sp.models.run.chunked import check_context
from sp.models.run.tree import MOST_NODES, TreePass, ancestry
from sp.ops.feature_rows import pick_features


class GraphCycle(Cycle):
    """A cycle on the device, see `Cycle`; a tree and a path are read and kept launch by launch the first time alone."""

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        super().__init__(model, guesser, cache, nodes)
        self._model, self._cache, self._nodes = model, cache, nodes
        self._lane = CaptureStream()
        self._tree = PinnedStaging(ids=(np.int32, nodes), positions=(np.int64, nodes), seen=(np.uint64, nodes))
        self._path = PinnedStaging(path=(np.int32, MOST_NODES), kept=(np.int32, 1))
        self._picked: Any = None
        how: dict[str, Any] = {"agreed": model.agreed, "cache": cache}
        self._reading: CapturedGraph[TreePass] = CapturedGraph(**how)
        self._keeping: CapturedGraph[Any] = CapturedGraph(**how)

    @property
    def refused(self) -> str | None:
        """See `Cycle`."""
        return self._reading.refused or self._keeping.refused

    def working(self) -> AbstractContextManager[None]:
        """See `Cycle`: a stream and memory of its own."""
        return self._lane.working()

    def read(self, tree: Tree, position: int) -> TreePass:
        """See `Cycle`."""
        n, nodes = len(tree.tokens), self._nodes
        assert n <= nodes, f"a tree of {n} nodes for graphs of {nodes}"
        positions = position + tree.depths
        check_context(self._model, positions)
        self._cache.reserve(nodes)
        host = self._tree.open()
        for name, values in (("ids", tree.tokens), ("positions", positions), ("seen", ancestry(tree.parents))):
            host[name][:n] = values
            host[name][n:] = values[0]
        host["seen"][n:] |= np.uint64(1) << np.arange(n, nodes, dtype=np.uint64)
        self._tree.send()
        counting = self._reading.ready
        seen = self._reading(self._read)
        if counting:  # while the device is at work
            self._cache.count(nodes)
        self._model.settled()
        return seen

    def keep(self, path: Ints) -> None:
        """See `Cycle`."""
        host = self._path.open()
        host["path"][: len(path)] = path
        host["kept"][:] = len(path)
        self._path.send()
        self._picked = self._keeping(self._keep)
        self._cache.count(len(path) - self._nodes)

    def remember(self, path: Ints, positions: Ints) -> None:
        """See `Cycle`."""
        self._guesser.remember(self._picked[: len(path)], positions)

    def rest(self) -> None:
        """See `Cycle`."""
        self._lane.stream.synchronize()

    def end(self) -> None:
        """See `Cycle`."""
        self.rest()
        self._picked = None
        self._reading.clear()
        self._keeping.clear()
        super().end()
        self._lane.end()

    def _read(self) -> TreePass:
        tree = self._tree.device
        return self._reader.read(Nodes(tree["ids"], tree["positions"], tree["seen"]))

    def _keep(self) -> Any:
        """Keep the path; features of its nodes, as many rows as a tree has nodes."""
        path, kept = self._path.device["path"], self._path.device["kept"]
        self._reader.keep(self._nodes, path, kept)
        if not self._reader.layers:
            return self._reader.features
        picked, _ = pick_features(self._reader.features, self._tree.device["positions"], path, kept, self._nodes)
        return picked


def new_cycle(model: Model, guesser: Guesser, cache: Cache, nodes: int) -> Cycle:
    """A cycle for trees of at most `nodes` nodes; on the device in CUDA graphs, where the model can be captured."""
    kind = GraphCycle if model.device == "cuda" and model.captures else Cycle
    return kind(model, guesser, cache, nodes)
