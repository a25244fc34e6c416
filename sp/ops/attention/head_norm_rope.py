"""head_norm_rope: RMS norm of every head, then rotary embedding: what happens to q and k before they meet."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.attention_rows import HEAD_DIMS, HEAD_NORM_ROPE, ROWS_A_BLOCK
from sp.ops.norms import rms_norm
from sp.ops.rope import Rope, rope


def head_norm_rope(x: Floats, weight: Floats, eps: float, positions: Ints, rotary: Rope) -> Floats:
    """Norm the first d values of every head and turn them by their token's position; see `rms_norm` and `rope`.

    Parameters
    ----------
    x : float32 (tokens, heads, stride), on the device bf16
        ``stride >= d``; what lies behind the first d values (a gate) is not touched.
    weight : float32 (d,)
        On the device d is 64, 128 or 256.
    eps : float
    positions : int64 (tokens,)
    rotary : Rope

    Returns
    -------
    float32 (tokens, heads, d), on the device float16
        Angles are as exact at position 1 000 000 as at 1.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[3.0, -3.0, 7.0]]], np.float32)
    >>> head_norm_rope(x, np.ones(2, np.float32), 0.0, np.array([0]), Rope(1e6, 2))
    array([[[ 1., -1.]]], dtype=float32)
    """
    if not is_device(x):
        return rope(rms_norm(x[..., : len(weight)], weight, eps), positions, rotary)
    tokens, heads, stride = x.shape
    head_dim = checked_head_dim(len(weight))
    assert stride >= head_dim, f"x {x.shape}, weight {len(weight)}"
    assert len(positions) == tokens, f"x {x.shape}, positions {len(positions)}"
    out: Floats = import_cupy().empty((tokens, heads, head_dim), np.float16)
    HEAD_NORM_ROPE.launch(
        (-(-tokens * heads // ROWS_A_BLOCK),),
        x,
        weight,
        positions,
        turns(rotary, current_device()),
        out,
        tokens * heads,
        heads,
        stride,
        rotary.dim // 2,
        eps,
        defines={"HEAD_DIM": head_dim},
    )
    return out


@cache
def turns(rotary: Rope, device: int) -> Any:
    """`Rope.turn_fractions` on the device."""
    return import_cupy().asarray(rotary.turn_fractions())


def checked_head_dim(head_dim: int) -> int:
    """ConfigError for a head size that the kernels do not take."""
    if head_dim not in HEAD_DIMS:
        raise ConfigError(f"heads of {head_dim} values: on the GPU they must be one of {HEAD_DIMS}; use device='cpu'")
    return head_dim
