"""From attention weights (heads, queries, tokens) to one number a token: the steps, and the order they are taken in.

The order is a choice that published systems make differently:

* SpecPrefill (arXiv 2502.02789) pools along the prompt, takes the maximum over layers and heads, then the
  mean over queries: ``order="pool,heads,queries"``.
* Maximum over heads, mean over queries, pooling last is ``order="heads,queries,pool"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError

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


def chunk_means(values: Floats, size: int) -> Floats:
    """Mean over chunks of `size` along the last axis; a short last chunk uses its own length.

    Examples
    --------
    >>> chunk_means(np.array([1, 3, 5], np.float32), 2).tolist()
    [2.0, 5.0]
    """
    starts = np.arange(0, values.shape[-1], size)
    counts = np.diff(np.append(starts, values.shape[-1]))
    return np.asarray(np.add.reduceat(values, starts, axis=-1) / counts, np.float32)


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
            return average_pool(values, self.pool, self.edges) if self.pool > 1 else values
        reduce = np.max if self.queries == "max" else np.mean
        return np.asarray(reduce(values, axis=-2, keepdims=True), np.float32)

    def fold(self, probs: Floats, running: Floats | None) -> Floats:
        """Fold one layer's weights (heads, queries, tokens) into the running result (queries or 1, tokens).

        What runs over the heads is their maximum, or for a mean their sum.
        """
        for name in self.before:
            probs = self.step(name, probs)
        if self.heads == "max":
            folded: Floats = probs.max(axis=0)
            return folded if running is None else np.maximum(running, folded)
        folded = probs.sum(axis=0)
        return folded if running is None else running + folded

    def finish(self, running: Floats, heads: int) -> Floats:
        """Importance (tokens,) from the running result after `heads` heads of all layers."""
        values = running if self.heads == "max" else running / np.float32(heads)
        for name in self.after:
            values = self.step(name, values)
        return np.asarray(values[0], np.float32)
