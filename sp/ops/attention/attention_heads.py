"""The prologue of attention: norms and RoPE of q, k and v after their projections, and the append to the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.kept import cache
from sp.kernels.specs.attention.attention_rows import (
    ATTENTION_HEADS,
    HEAD_NORM_ROPE,
    HEADS_A_WARP,
    PROMPT_HEADS,
    ROWS_A_BLOCK,
)
from sp.kernels.specs.attention.importance import HEAD_WARPS, UNROTATE
from sp.ops.attention.few_heads import in_vectors, turned_heads
from sp.ops.attention.kv_pages import PagedKV, basis_arrays, checked_head_dim, page_head_dim, rows_formats, split_count
from sp.ops.norms import ones, rms_norm
from sp.ops.rope import Rope, rope


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of every query, key and value head; ``HeadNorms()`` for a model without them."""

    q: Floats | None = None  # q and k: float32 (head_dim,), optional, weights: both or neither
    k: Floats | None = None
    eps: float = 0.0
    values: bool = False  # True if value heads are normed, without weights

    def __post_init__(self) -> None:
        assert (self.q is None) == (self.k is None), "norms of queries and of keys come together"


def head_norm_rope(
    x: Floats, head_dim: int, weight: Floats | None, eps: float, positions: Ints, rotary: Rope
) -> Floats:
    """Norm the first d values of every head and rotate them by their token's position; see `rms_norm` and `rope`.
    Returns float32 (tokens, heads, d), on the device float16; angles are as exact at position 1 000 000 as at 1.

    Parameters
    ----------
    x : float32 (tokens, heads, stride), on the device bf16
        ``stride >= d``; values after the first d (a gate) are ignored.
    head_dim : int, d; on the device 64, 128, 256 or 512
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
        if x.dtype == np.float32 and in_vectors(head_dim, rotary):
            return turned_heads([(x, weight)], head_dim, eps, positions, rotary)[0]
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


def normed_values(v: Floats, norms: HeadNorms, positions: Ints) -> Floats:
    """Norm value heads (tokens, kv_heads, d) without weights; see `head_norm_rope`."""
    d = v.shape[2]
    return head_norm_rope(v, d, ones(d, v), norms.eps, positions, NO_ROPE)


NO_ROPE = Rope(1.0, 0)


def row_defines(head_dim: int, rotary: Rope, normed: bool) -> dict[str, int]:
    """Return the defines of kernels that rotate rows of heads; defaults are omitted.

    >>> row_defines(128, Rope(1e6, 128), True), row_defines(64, Rope(1e4, 64, "interleaved"), False)
    ({'HEAD_DIM': 128}, {'HEAD_DIM': 64, 'INTERLEAVED': 1, 'NORM': 0})
    """
    pairs = {"INTERLEAVED": 1} if rotary.pairing == "interleaved" else {}
    return {"HEAD_DIM": head_dim, **pairs, **({} if normed else {"NORM": 0})}


@cache
def turns(rotary: Rope, device: int) -> Any:
    """Return `Rope.turn_fractions` on the device; a dummy that nothing reads if there is no rotation."""
    return import_cupy().asarray(rotary.turn_fractions() if rotary.dim else np.zeros(1, np.int64))


MANY = 512  # tokens that fill the GPU with warps of several heads, or of all heads of a token


def attention_heads(
    q: Floats,
    k: Floats,
    v: Floats,
    norms: HeadNorms,
    positions: Ints,
    rotary: Rope,
    at: PagedKV,
    out: Floats | None = None,
) -> Floats:
    """Norm and rotate q and k, store k and v: `head_norm_rope` of both and `kv_append`, on the device in one launch.
    Returns queries, float32 (tokens, heads, d), on the device float16; not rotated by the Hadamard matrix.

    Parameters
    ----------
    q : float32 (tokens, heads, stride), on the device bf16, only the first d values of a head are used
    k, v : float32 (tokens, kv_heads, d), on the device bf16
    positions : int64 (tokens,)
    at : PagedKV, the cache to which k and v are appended
    out : array like the result, optional, receives the queries
    """
    (tokens, heads, stride), d = q.shape, k.shape[2]
    if not is_device(q):
        v = normed_values(v, norms, positions) if norms.values else v
        if out is None and q.dtype == np.float32 and in_vectors(d, rotary):
            return turned_heads([(q, norms.q), (k, norms.k)], d, norms.eps, positions, rotary, at, v)[0]
        at.append(head_norm_rope(k, d, norms.k, norms.eps, positions, rotary), v)
        turned = head_norm_rope(q, d, norms.q, norms.eps, positions, rotary)
        if out is None:
            return turned
        out[...] = turned
        return out
    assert stride >= d, f"q {q.shape}, k {k.shape}"
    assert out is None or out.shape == (tokens, heads, d), f"out {np.shape(out)}, q {q.shape}"
    if out is None:
        out = import_cupy().empty((tokens, heads, d), np.float16)
    _launch(q, out, k, v, norms, positions, rotary, at)
    return out


def context_heads(k: Floats, v: Floats, norms: HeadNorms, positions: Ints, rotary: Rope, at: PagedKV) -> None:
    """Norm, rotate and store k and v as `attention_heads` does, for tokens without queries; parameters as there."""
    if is_device(k):
        _launch(None, None, k, v, norms, positions, rotary, at)
    else:
        v = normed_values(v, norms, positions) if norms.values else v
        at.append(head_norm_rope(k, k.shape[2], norms.k, norms.eps, positions, rotary), v)


def _launch(q: Any, out: Any, k: Any, v: Any, norms: HeadNorms, positions: Any, rotary: Rope, at: PagedKV) -> None:
    """Launch the kernels; `q` and `out` are None if there are no queries."""
    tokens, kv_heads, d = k.shape
    heads, stride = (0, 0) if q is None else q.shape[1:]
    assert v.shape == k.shape, f"k {k.shape}, v {v.shape}"
    assert q is None or len(q) == tokens, f"q {q.shape}, k {k.shape}"
    assert d == page_head_dim(at.k, at.fmt), f"k {k.shape}, pages {at.k.shape}"
    assert at.k.shape[:3] == at.v.shape[:3], f"{at.k.shape}, {at.v.shape}"
    assert len(positions) == tokens, f"{len(positions)} positions for {tokens} tokens"
    start, offset = split_count(at.first)
    # With many tokens a warp has several heads of a token, which share its angles.
    many, defines = tokens >= MANY, row_defines(d, rotary, norms.k is not None)
    rows = (q, k, v, None if q is None else norms.q, norms.k, positions, turns(rotary, current_device()), out)
    where = (at.k, at.v, at.table, start, offset, tokens, heads, kv_heads, stride)
    plain = at.exact and not at.rotated and not norms.values
    if many and plain and _takes(d, rotary, norms.k is not None):
        PROMPT_HEADS.launch((-(-tokens // ROWS_A_BLOCK),), *rows, *where, norms.eps, rotary.magnitude, defines=defines)
        return
    each, (keys, values) = HEADS_A_WARP if many else 1, rows_formats(at)
    defines |= {"VALUE_NORM": 1} if norms.values else {}
    run = None if at.recent is None else at.recent.begin(at, tokens)
    exact: list[Any] = [None, None]
    if at.recent is not None:
        exact = [ring[at.recent.page] for ring in (at.recent.k, at.recent.v)]
    exact += [None, None] if run is None else [run.k, run.v]
    ATTENTION_HEADS.launch(
        (-(-tokens * (heads + 2 * kv_heads) // (ROWS_A_BLOCK * each)),),
        *rows,
        *where,
        rotary.dim // 2,
        norms.eps,
        rotary.magnitude,
        *basis_arrays(at.basis),
        *(None if one is None else one.view(np.uint16) for one in exact),
        defines={**defines, "K_FORMAT": keys, "V_FORMAT": values, "ROTATE": int(at.rotated), "ROWS": each},
    )


def _takes(d: int, rotary: Rope, normed: bool) -> bool:
    """Return True if prompt_heads supports such heads: fully rotated ones of a few sizes.

    >>> _takes(128, Rope(1e6, 128), True), _takes(128, Rope(1e6, 64), False), _takes(64, Rope(1e6, 64), True)
    (True, False, False)
    """
    if normed:
        return rotary.dim == d == 128 and rotary.pairing == "halves"
    return rotary.dim == d and d in (64, 128)


def unrotate(x: Floats, positions: Ints, rotary: Rope) -> Floats:
    """Invert `rope`, up to rounding. Returns float32 (tokens, heads, d), a new array; on the device `x` itself, changed
    in place.

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
    return _unrotate_on_device(x, positions, rotary) if rotary.dim else x


def _unrotate_on_device(x: Any, positions: Any, rotary: Rope) -> Floats:
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
