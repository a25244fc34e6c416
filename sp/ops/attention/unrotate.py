"""unrotate: rotary embedding undone, a turn by the negative position and a division by its magnitude."""

from __future__ import annotations

from typing import Any

from sp.arrays import Floats, Ints
from sp.kernels import is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.importance import HEAD_WARPS, UNROTATE
from sp.ops.attention.head_norm_rope import checked_head_dim, row_defines, turns
from sp.ops.rope import Rope, rope


def unrotate(x: Floats, positions: Ints, rotary: Rope) -> Floats:
    """What `rope` was given to return `x`, up to rounding. Returns float32 (tokens, heads, d), a new array; on the
    device `x` itself, changed in place.

    Parameters
    ----------
    x : float32 (tokens, heads, d), on the device float16
    positions : int64 (tokens,)

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    >>> bool(np.abs(unrotate(rope(x, np.array([7]), Rope(1e6, 4)), np.array([7]), Rope(1e6, 4)) - x).max() < 1e-6)
    True
    """
    if not is_device(x):
        return rope(x, -positions, rotary.undone())
    return _on_device(x, positions, rotary)


def _on_device(x: Any, positions: Any, rotary: Rope) -> Floats:
    tokens, heads, d = x.shape
    assert len(positions) == tokens, f"{len(positions)} positions for {tokens} tokens"
    grid = (-(-tokens * heads // HEAD_WARPS),)
    defines = row_defines(checked_head_dim(d), rotary, normed=True)
    UNROTATE.launch(
        grid,
        x,
        positions,
        turns(rotary, current_device()),
        tokens * heads,
        heads,
        rotary.dim // 2,
        rotary.undone().magnitude,
        defines=defines,
    )
    unturned: Floats = x
    return unturned
