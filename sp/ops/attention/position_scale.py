"""Scale queries with their position, so that attention stays sharp in long prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import is_device
from sp.kernels.specs.query_rows import QUERY_THREADS, SCALE_QUERIES, VALUES


@dataclass(frozen=True)
class PositionScale:
    """Factor of queries, ``1 + scale * ln(1 + floor(position / length))``: 1 within the first `length` positions, the
    context of the original training. Source: Nakanishi, "Scalable-Softmax", 2025, in the steps of Llama 4.

    >>> PositionScale(0.1, 8192).of(np.array([8191, 8192])).round(4).tolist() == [1.0, np.float32(1.0693)]
    True
    """

    scale: float
    length: int

    def of(self, positions: Ints) -> Floats:
        """Return the factor of each position: float32 (tokens,)."""
        steps = np.asarray(positions, np.int64) // self.length
        return (1 + self.scale * np.log1p(steps)).astype(np.float32)


def scale_queries(q: Floats, positions: Ints, by: PositionScale) -> None:
    """Multiply queries by the factors of their positions, in place.

    Parameters
    ----------
    q : float32 (tokens, heads, d), on the device float16, d a multiple of 8
    positions : int64 (tokens,)
        From 0 on.

    Examples
    --------
    >>> q = np.ones((2, 1, 1), np.float32)
    >>> scale_queries(q, np.array([0, 1]), PositionScale(1.0, 1))
    >>> q.ravel()
    array([1.       , 1.6931472], dtype=float32)
    """
    tokens, heads, d = q.shape
    assert len(positions) == tokens, f"q {q.shape}, positions {len(positions)}"
    if not is_device(q):
        q *= by.of(positions)[:, None, None]
        return
    width = heads * d
    assert width % VALUES == 0, f"q {q.shape}"
    if tokens:
        blocks = -(-width // (VALUES * QUERY_THREADS))
        SCALE_QUERIES.launch((tokens, blocks), q, positions, width // VALUES, by.length, by.scale)
