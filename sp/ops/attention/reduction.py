"""From attention weights (heads, queries, tokens) to one number a token: the steps, and the order they are taken in.

The order is a choice that published systems make differently:

* SpecPrefill (arXiv 2502.02789) pools along the prompt, takes the maximum over layers and heads, then the
  mean over queries: ``order="pool,heads,queries"``.
* The seed of this project, Lucebox, takes the maximum over heads, then the mean over queries, and pools last:
  ``order="heads,queries,pool"``, with the averages at the ends over the tokens that are there.
* SpecPC (arXiv 2506.08373) takes the maximum over everything and pools last by a maximum over 64 tokens:
  ``order="heads,queries,pool", queries="max", pooling="max", pool=64``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.ops.array_module import array_module

STEPS = ("pool", "heads", "queries")
Edges = Literal["renormalise", "zero"]
Pooling = Literal["mean", "max"]


def average_pool(values: Floats, width: int, edges: Edges) -> Floats:
    """Moving average of odd `width` along the last axis, in NumPy or on the device. `zero` divides by `width`
    everywhere, which damps the ends of the prompt (as the reference of SpecPrefill does); `renormalise` divides by the
    number of tokens really in the window.

    >>> average_pool(np.ones(4, np.float32), 3, "renormalise").tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    xp = array_module(values)
    n, half = values.shape[-1], width // 2
    total = xp.zeros((*values.shape[:-1], n + 1), np.float64)
    total[..., 1:] = xp.cumsum(values, axis=-1, dtype=np.float64)
    low = xp.maximum(xp.arange(n) - half, 0)
    high = xp.minimum(xp.arange(n) + half + 1, n)
    sums = total[..., high] - total[..., low]
    pooled: Floats = (sums / (width if edges == "zero" else high - low)).astype(np.float32)
    return pooled


def max_pool(values: Floats, width: int) -> Floats:
    """Largest of the `width` values from ``width // 2`` before each on, along the last axis; fewer at the ends.

    >>> max_pool(np.array([1, 0, 0, 3, 0], np.float32), 2).tolist()
    [1.0, 1.0, 0.0, 3.0, 3.0]
    """
    xp = array_module(values)
    n = values.shape[-1]
    most = xp.full((*values.shape[:-1], n + width - 1), -np.inf, np.float32)
    most[..., width // 2 : width // 2 + n] = values
    span = 1
    while span < width:  # windows of twice the span, or of what is left
        step = min(span, width - span)
        most = xp.maximum(most[..., :-step], most[..., step:])
        span += step
    pooled: Floats = most
    return pooled


def chunk_means(values: Floats, size: int) -> Floats:
    """Mean over chunks of `size` along the last axis; a short last chunk uses its own length.

    >>> chunk_means(np.array([1, 3, 5], np.float32), 2).tolist()
    [2.0, 5.0]
    """
    xp = array_module(values)
    n = values.shape[-1]
    chunks = -(-n // size)
    padded = xp.zeros((*values.shape[:-1], chunks * size), np.float32)
    padded[..., :n] = values
    sums = padded.reshape(*values.shape[:-1], chunks, size).sum(axis=-1)
    means: Floats = (sums / xp.minimum(n - size * xp.arange(chunks), size)).astype(np.float32)
    return means


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
        Width of the window in tokens, odd for a mean; 1 switches pooling off.
    edges : {"renormalise", "zero"}
        Treatment of a mean's window at the ends of the prompt.
    pooling : {"mean", "max"}
        What is taken of the window.
    """

    order: str = "pool,heads,queries"
    heads: Literal["max", "mean"] = "max"
    queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Edges = "renormalise"
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        check_fields(self, "reduction")
        if sorted(self.order.split(",")) != sorted(STEPS):
            raise ConfigError(f"order must be a permutation of {','.join(STEPS)}, not {self.order!r}")
        if self.pool < 1 or (self.pool % 2 == 0 and self.pooling == "mean"):
            raise ConfigError(f"pool must be a positive width, and odd for a mean; not {self.pool}")

    @property
    def before(self) -> tuple[str, ...]:
        """Steps that come before the heads, in order."""
        steps = self.order.split(",")
        return tuple(steps[: steps.index("heads")])

    @property
    def after(self) -> tuple[str, ...]:
        """Steps that come after the heads, in order."""
        steps = self.order.split(",")
        return tuple(steps[steps.index("heads") + 1 :])

    def step(self, name: str, values: Floats) -> Floats:
        """Apply the step `pool` or `queries` to (..., queries, tokens)."""
        if name == "pool":
            if self.pool == 1:
                return values
            if self.pooling == "max":
                return max_pool(values, self.pool)
            return average_pool(values, self.pool, self.edges)
        reduced: Floats = (values.max if self.queries == "max" else values.mean)(axis=-2, keepdims=True)
        return reduced

    def fold(self, probs: Floats, running: Floats | None) -> Floats:
        """Fold one layer's weights (heads, queries, tokens) into the running result (queries or 1, tokens). What runs
        over the heads is their maximum, or for a mean their sum. Heads are taken one by one: pooling makes copies."""
        folded = running
        for head in probs:
            for name in self.before:
                head = self.step(name, head)
            if folded is None:
                folded = head.astype(np.float32)
            elif self.heads == "max":
                folded = array_module(head).maximum(folded, head)
            else:
                folded = folded + head
        assert folded is not None, "no heads to fold"
        return folded

    def finish(self, running: Floats, heads: int) -> Floats:
        """Importance (tokens,) from the running result after `heads` heads of all layers."""
        values = running if self.heads == "max" else running / np.float32(heads)
        for name in self.after:
            values = self.step(name, values)
        importance: Floats = values[0].astype(np.float32)
        return importance
