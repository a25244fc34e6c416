"""attention_heads and context_heads: all that happens to q, k and v between their projections and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.attention_rows import (
    ATTENTION_HEADS,
    HEADS_A_WARP,
    PROMPT_HEADS,
    ROWS_A_BLOCK,
)
from sp.ops.attention.head_norm_rope import HeadNorms, head_norm_rope, row_defines, turns
from sp.ops.attention.kv_pages import is_packed, page_head_dim, split_count
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.rope import Rope

MANY = 512  # tokens that fill the card with warps of several heads, or of all heads of a token


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
    """Norm and turn q and k, store k and v: `head_norm_rope` of both and `kv_append`, on the device in one launch.
    Returns float32 (tokens, heads, d), on the device float16, queries; not rotated by the Hadamard matrix.

    Parameters
    ----------
    q : float32 (tokens, heads, stride), on the device bf16, only the first d values of a head are used
    k, v : float32 (tokens, kv_heads, d), on the device bf16
    positions : int64 (tokens,)
    at : PagedKV, where k and v go, as the next tokens
    out : array as the one returned, optional, where to write the queries
    """
    (tokens, heads, stride), d = q.shape, k.shape[2]
    if not is_device(q):
        context_heads(k, v, norms, positions, rotary, at)
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
    """What `attention_heads` does with k and v, for tokens that ask nothing; parameters as there."""
    if is_device(k):
        _launch(None, None, k, v, norms, positions, rotary, at)
    else:
        at.append(head_norm_rope(k, k.shape[2], norms.k, norms.eps, positions, rotary), v)


def _launch(q: Any, out: Any, k: Any, v: Any, norms: HeadNorms, positions: Any, rotary: Rope, at: PagedKV) -> None:
    """`q` and where to write it are None where there are none."""
    tokens, kv_heads, d = k.shape
    heads, stride = (0, 0) if q is None else q.shape[1:]
    assert v.shape == k.shape, f"k {k.shape}, v {v.shape}"
    assert q is None or len(q) == tokens, f"q {q.shape}, k {k.shape}"
    assert d == page_head_dim(at.k, at.fmt), f"k {k.shape}, pages {at.k.shape}"
    assert at.k.shape == at.v.shape, f"{at.k.shape}, {at.v.shape}"
    assert len(positions) == tokens, f"{len(positions)} positions for {tokens} tokens"
    start, offset = split_count(at.first)
    many, defines = tokens >= MANY, row_defines(d, rotary, norms.k is not None)
    rows = (q, k, v, None if q is None else norms.q, norms.k, positions, turns(rotary, current_device()), out)
    where = (at.k, at.v, at.table, start, offset, tokens, heads, kv_heads, stride)
    if many and not is_packed(at.fmt) and not at.rotated and _takes(d, rotary, norms.k is not None):
        PROMPT_HEADS.launch((-(-tokens // ROWS_A_BLOCK),), *rows, *where, norms.eps, rotary.magnitude, defines=defines)
        return
    each = HEADS_A_WARP if many else 1
    ATTENTION_HEADS.launch(
        (-(-tokens * (heads + 2 * kv_heads) // (ROWS_A_BLOCK * each)),),
        *rows,
        *where,
        rotary.dim // 2,
        norms.eps,
        rotary.magnitude,
        defines={**defines, "Q4": int(is_packed(at.fmt)), "ROTATE": int(at.rotated), "ROWS": each},
    )


def _takes(d: int, rotary: Rope, normed: bool) -> bool:
    """Whether prompt_heads turns such heads: whole ones of few sizes.

    >>> _takes(128, Rope(1e6, 128), True), _takes(128, Rope(1e6, 64), False), _takes(64, Rope(1e6, 64), True)
    (True, False, False)
    """
    if normed:
        return rotary.dim == d == 128 and rotary.pairing == "halves"
    return rotary.dim == d and d in (64, 128)
