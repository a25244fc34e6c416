"""head_norm_rope: RMS norm of every head, then rotary embedding: what happens to q and k before they meet."""

from __future__ import annotations

from sp.arrays import Floats, Ints
from sp.ops.norms import rms_norm
from sp.ops.rope import rope


def head_norm_rope(x: Floats, weight: Floats, eps: float, positions: Ints, base: float, rope_dim: int) -> Floats:
    """Norm the first d values of every head and turn them by their token's position; see `rms_norm` and `rope`.

    Parameters
    ----------
    x : float32 (tokens, heads, stride)
        ``stride >= d``; what lies behind the first d values (a gate) is not touched.
    weight : float32 (d,)
    eps : float
    positions : int64 (tokens,)
    base : float
    rope_dim : int

    Returns
    -------
    float32 (tokens, heads, d)

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[3.0, -3.0, 7.0]]], np.float32)
    >>> head_norm_rope(x, np.ones(2, np.float32), 0.0, np.array([0]), 1e6, 2)
    array([[[ 1., -1.]]], dtype=float32)
    """
    return rope(rms_norm(x[..., : len(weight)], weight, eps), positions, base, rope_dim)
