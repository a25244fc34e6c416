"""From attention weights (layers, heads, queries, tokens) to one number a token, folded layer by layer.

The order of the three steps is a choice that published systems make differently:

* SpecPrefill (arXiv 2502.02789) pools along the prompt, takes the maximum over layers and heads, then the
  mean over queries: ``order="pool,heads,queries"``.
* Maximum over heads, mean over queries, pooling last is ``order="heads,queries,pool"``.

Only the running result (queries, tokens) is held, never (layers, heads, queries, tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.scoring.base import HEATMAP_CHUNK, chunk_means

STEPS = ("pool", "heads", "queries")


def average_pool(values: Floats, width: int, edges: Literal["renormalise", "zero"]) -> Floats:
    """Moving average of odd `width` along the last axis.

    `zero` divides by `width` everywhere, which damps the ends of the prompt (as the reference of
    SpecPrefill does); `renormalise` divides by the number of tokens really in the window.

    Examples
    --------
    >>> average_pool(np.ones(4, np.float32), 3, "renormalise").tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    n, half = values.shape[-1], width // 2
    total = np.zeros((*values.shape[:-1], n + 1), np.float64)
    np.cumsum(values, axis=-1, out=total[..., 1:])
    low = np.maximum(np.arange(n) - half, 0)
    high = np.minimum(np.arange(n) + half + 1, n)
    sums = total[..., high] - total[..., low]
    return np.asarray(sums / (width if edges == "zero" else high - low), np.float32)


@dataclass(frozen=True)
class Reduction:
    """How attention becomes importance.

    Parameters
    ----------
    order : str
        A permutation of ``pool,heads,queries``, applied from left to right.
    heads : {"max", "mean"}
        Over all heads of all layers.
    queries : {"mean", "max"}
        Over the query tokens.
    pool : int
        Width of the moving average in tokens; odd, 1 switches it off.
    edges : {"renormalise", "zero"}
        Treatment of the window at the ends of the prompt.
    """

    order: str = "pool,heads,queries"
    heads: Literal["max", "mean"] = "max"
    queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Literal["renormalise", "zero"] = "renormalise"

    def __post_init__(self) -> None:
        check_fields(self, "reduction")
        if sorted(self.order.split(",")) != sorted(STEPS):
            raise ConfigError(f"order must be a permutation of {','.join(STEPS)}, not {self.order!r}")
        if self.pool < 1 or self.pool % 2 == 0:
            raise ConfigError(f"pool must be a positive odd width, not {self.pool}")

    def step(self, name: str, values: Floats) -> Floats:
        """Apply the step `pool` or `queries` to (..., queries, tokens)."""
        if name == "pool":
            return average_pool(values, self.pool, self.edges) if self.pool > 1 else values
        reduce = np.max if self.queries == "max" else np.mean
        return np.asarray(reduce(values, axis=-2, keepdims=True), np.float32)


@dataclass
class Fold:
    """Running reduction over the layers of a drafter.

    Examples
    --------
    >>> fold = Fold(Reduction(pool=1))
    >>> fold.add(np.full((2, 1, 4), 0.25, np.float32))
    >>> fold.result().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    reduction: Reduction
    running: Floats | None = None
    count: int = 0
    layers: list[Floats] = field(default_factory=list)

    def add(self, probs: Floats) -> None:
        """Fold in one layer's weights (heads, queries, tokens)."""
        self.layers.append(chunk_means(probs.max(axis=0).mean(axis=0), HEATMAP_CHUNK))
        for name in self.reduction.order.split("heads")[0].strip(",").split(","):
            if name:
                probs = self.reduction.step(name, probs)
        if self.reduction.heads == "max":
            folded = probs.max(axis=0)
            self.running = folded if self.running is None else np.maximum(self.running, folded)
        else:
            folded = probs.sum(axis=0)
            self.running = folded if self.running is None else self.running + folded
        self.count += len(probs)

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads."""
        assert self.running is not None, "no layer was folded in"
        values = self.running if self.reduction.heads == "max" else self.running / np.float32(self.count)
        for name in self.reduction.order.split("heads")[1].strip(",").split(","):
            if name:
                values = self.reduction.step(name, values)
        return np.asarray(values[0], np.float32)

    def heatmap(self) -> Floats:
        """Importance by layer, (layers, chunks)."""
        return np.stack(self.layers)
