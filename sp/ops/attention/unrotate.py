"""unrotate: rotary embedding undone, a turn by the negative position."""

from __future__ import annotations

from typing import Any

from sp.arrays import Floats, Ints
from sp.kernels import is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.importance import HEAD_WARPS, UNROTATE
from sp.ops.attention.head_norm_rope import checked_head_dim, turns
from sp.ops.rope import rope


def unrotate(x: Floats, positions: Ints, base: float, rope_dim: int) -> Floats:
    """What `rope` was given to return `x`, up to rounding.

    Parameters
    ----------
    x : float32 (tokens, heads, d), on the device float16
    positions : int64 (tokens,)
    base, rope_dim
        See `rope`.

    Returns
    -------
    float32 (tokens, heads, d)
        A new array; on the device `x` itself, changed in place.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    >>> bool(np.abs(unrotate(rope(x, np.array([7]), 1e6, 4), np.array([7]), 1e6, 4) - x).max() < 1e-6)
    True
    """
    if not is_device(x):
        return rope(x, -positions, base, rope_dim)
    return _on_device(x, positions, base, rope_dim)


def _on_device(x: Any, positions: Any, base: float, rope_dim: int) -> Floats:
    tokens, heads, d = x.shape
    assert len(positions) == tokens, f"{len(positions)} positions for {tokens} tokens"
    grid = (-(-tokens * heads // HEAD_WARPS),)
    defines = {"HEAD_DIM": checked_head_dim(d)}
    UNROTATE.launch(
        grid,
        x,
        positions,
        turns(base, rope_dim, current_device()),
        tokens * heads,
        heads,
        rope_dim // 2,
        defines=defines,
    )
    unturned: Floats = x
    return unturned
