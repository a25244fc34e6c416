"""rope: rotary position embedding, NeoX pairing, on the first `rope_dim` values of every head."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.threads import run_parallel, token_slices


def rope(x: Floats, positions: Ints, base: float, rope_dim: int) -> Floats:
    """Rotate each head by its token's position.

    With ``h = rope_dim / 2`` and pair ``j < h``, the angle is ``positions[t] * base ** (-2 j / rope_dim)`` and

    ``y[j] = x[j] cos - x[j + h] sin``,  ``y[j + h] = x[j] sin + x[j + h] cos``,

    values from `rope_dim` on pass through. Angles are float64, so position 1 000 000 is as exact as position 1.
    Negated positions undo the rotation. The text-only case of interleaved M-RoPE (Qwen3.5) is this very formula.

    Parameters
    ----------
    x : float32 (tokens, heads, head_dim)
    positions : int64 (tokens,)
        Any order, gaps allowed.
    base : float
        ``rope.freq_base``, e.g. 1e6.
    rope_dim : int
        Even and at most head_dim.

    Returns
    -------
    float32 (tokens, heads, head_dim)

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    >>> y = rope(rope(x, np.array([7]), 1e6, 2), np.array([-7]), 1e6, 2)
    >>> bool(np.abs(x - y).max() < 1e-6)
    True
    """
    assert len(x) == len(positions), f"x {x.shape}, positions {np.shape(positions)}"
    assert rope_dim in range(2, x.shape[2] + 1, 2), f"rope_dim {rope_dim}, head_dim {x.shape[2]}"
    half = rope_dim // 2
    frequency = float(base) ** (-np.arange(half, dtype=np.float64) * 2 / rope_dim)
    y = np.empty_like(x)

    def rotate(tokens: slice) -> None:
        angle = np.asarray(positions[tokens], np.int64)[:, None] * frequency  # (tokens, half)
        cos = np.cos(angle).astype(x.dtype)[:, None]
        sin = np.sin(angle).astype(x.dtype)[:, None]
        a, b, part = x[tokens, :, :half], x[tokens, :, half:rope_dim], y[tokens]
        part[..., rope_dim:] = x[tokens, :, rope_dim:]
        np.multiply(a, cos, out=part[..., :half])
        part[..., :half] -= b * sin
        np.multiply(a, sin, out=part[..., half:rope_dim])
        part[..., half:rope_dim] += b * cos

    run_parallel(rotate, token_slices(len(x)))
    return y
