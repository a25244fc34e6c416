"""Fold: the importance of a prompt's tokens, gathered layer by layer.

Only the running result (queries, tokens) is held, never (layers, heads, queries, tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats
from sp.models.cache.host_room import looked_at
from sp.ops.array_module import array_module
from sp.ops.attention.importance import Folded, fold_weights, importance
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import STEPS, Reduction, average_pool
from sp.scoring.attention.laps import Laps

__all__ = ["STEPS", "Fold", "FoldByLayer", "Reduction", "average_pool"]


@dataclass
class Fold:
    """Running reduction over the layers of a drafter, in NumPy or on the device.

    Examples
    --------
    >>> fold = Fold(Reduction(pool=1))
    >>> fold.add(np.full((2, 1, 4), 0.25, np.float32))
    >>> fold.result().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    reduction: Reduction
    by_head: bool = False
    running: Any = None
    count: int = 0
    layers: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    laps: Laps = field(default_factory=Laps)
    """What `add_layer` takes."""

    def add(self, probs: Floats) -> None:
        """Fold in one layer's weights (heads, queries, tokens)."""
        self._take(fold_weights(probs, self.reduction, self._so_far(), by_head=self.by_head), len(probs))

    def add_layer(self, q: Floats, keys: PagedKV, *, causal: bool) -> None:
        """Fold in the weights of queries (n, heads, head_dim) over a layer's keys; see `importance`."""
        with self.laps.lap(q):
            found = importance(q, keys, self.reduction, self._so_far(), causal=causal, by_head=self.by_head)
            self._take(found, q.shape[1])

    def _so_far(self) -> Any:
        """What the heads of the next layer are folded into."""
        return self.running

    def _take(self, found: Folded, heads: int) -> None:
        self.running = found.running
        self.layers.append(found.by_layer)
        if found.by_head is not None:
            self.heads.append(found.by_head)
        self.count += heads

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        return self.reduction.finish(looked_at([self.running])[0], self.count)

    def heatmap(self) -> Floats:
        """Importance by layer, (layers, chunks)."""
        return np.stack(looked_at(self.layers))

    def head_maps(self) -> Floats | None:
        """Importance by layer and head, (layers, heads, chunks), if it was asked for."""
        return np.stack(looked_at(self.heads)) if self.heads else None


@dataclass
class FoldByLayer(Fold):
    """A `Fold` that reduces the heads of each layer by themselves, and then the layers.

    Parameters
    ----------
    over_layers : {"mean", "max"}
        With heads reduced likewise it is what `Fold` does, since all layers have as many.

    Examples
    --------
    >>> fold = FoldByLayer(Reduction(pool=1))
    >>> for top in (0.5, 1.0):
    ...     fold.add(np.array([[[top, 0]], [[0, 0.25]]], np.float32))
    >>> fold.result().tolist()
    [0.75, 0.25]
    """

    over_layers: Literal["mean", "max"] = "mean"

    def _so_far(self) -> None:
        """Nothing: each layer starts anew."""

    def _take(self, found: Folded, heads: int) -> None:
        before, layer = self.running, found.running
        if self.reduction.heads == "mean":
            layer = layer / np.float32(heads)
        if before is not None:
            layer = array_module(layer).maximum(before, layer) if self.over_layers == "max" else before + layer
        super()._take(found._replace(running=layer), 0)

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        layers = len(self.layers) if self.over_layers == "mean" else 1
        return self.reduction.finish(looked_at([self.running])[0] / np.float32(layers), 1)
