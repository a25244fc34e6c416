"""head_norm_rope: RMS norm of every head, then rotary embedding: what happens to q and k before they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.attention.attention_rows import HEAD_DIMS, HEAD_NORM_ROPE, ROWS_A_BLOCK
from sp.ops.norms import rms_norm
from sp.ops.rope import Rope, rope


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of every query head and every key head; ``HeadNorms()`` where a model has none."""

    q: Floats | None = None  # q and k: float32 (head_dim,), optional, weights: both or neither
    k: Floats | None = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        assert (self.q is None) == (self.k is None), "norms of queries and of keys come together"


def head_norm_rope(
    x: Floats, head_dim: int, weight: Floats | None, eps: float, positions: Ints, rotary: Rope
) -> Floats:
    """Norm the first d values of every head and turn them by their token's position; see `rms_norm` and `rope`. Returns
    float32 (tokens, heads, d), on the device float16; angles are as exact at position 1 000 000 as at 1.

    Parameters
    ----------
    x : float32 (tokens, heads, stride), on the device bf16
        ``stride >= d``; what lies behind the first d values (a gate) is not touched.
    head_dim : int, d; on the device 64, 128 or 256
    weight : float32 (d,), optional, no norm without it
    positions : int64 (tokens,)

    Examples
    --------
    >>> x = np.array([[[3.0, -3.0, 7.0]]], np.float32)
    >>> head_norm_rope(x, 2, np.ones(2, np.float32), 0.0, np.array([0]), Rope(1e6, 2))
    array([[[ 1., -1.]]], dtype=float32)
    """
    tokens, heads, stride = x.shape
    assert stride >= head_dim, f"x {x.shape}, heads of {head_dim}"
    assert weight is None or len(weight) == head_dim, f"weight {np.shape(weight)}, heads of {head_dim}"
    assert len(positions) == tokens, f"x {x.shape}, positions {len(positions)}"
    if not is_device(x):
        rows = x[..., :head_dim]
        return rope(rows if weight is None else rms_norm(rows, weight, eps), positions, rotary)
    out: Floats = import_cupy().empty((tokens, heads, checked_head_dim(head_dim)), np.float16)
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
        rotary.magnitude,
        defines=row_defines(head_dim, rotary, weight is not None),
    )
    return out


def row_defines(head_dim: int, rotary: Rope, normed: bool) -> dict[str, int]:
    """What kernels that turn rows of heads are compiled for; what is usual goes without saying.

    >>> row_defines(128, Rope(1e6, 128), True), row_defines(64, Rope(1e4, 64, "interleaved"), False)
    ({'HEAD_DIM': 128}, {'HEAD_DIM': 64, 'INTERLEAVED': 1, 'NORM': 0})
    """
    pairs = {"INTERLEAVED": 1} if rotary.pairing == "interleaved" else {}
    return {"HEAD_DIM": head_dim, **pairs, **({} if normed else {"NORM": 0})}


@cache
def turns(rotary: Rope, device: int) -> Any:
    """`Rope.turn_fractions` on the device."""
    return import_cupy().asarray(rotary.turn_fractions())


def checked_head_dim(head_dim: int) -> int:
    """ConfigError for a head size that the kernels do not take."""
    if head_dim not in HEAD_DIMS:
        raise ConfigError(f"heads of {head_dim} values: on the GPU they must be one of {HEAD_DIMS}; use device='cpu'")
    return head_dim
