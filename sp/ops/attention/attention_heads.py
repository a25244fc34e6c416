"""attention_heads and context_heads: all that happens to q, k and v between their projections and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.attention_rows import ATTENTION_HEADS, ROWS_A_BLOCK
from sp.ops.attention.gate_output import VALUE_BLOCK
from sp.ops.attention.head_norm_rope import head_norm_rope, turns
from sp.ops.attention.kv_pages import is_packed, kv_append, page_head_dim, split_count
from sp.ops.rope import Rope
from sp.quant import BlockFormat


def attention_heads(
    q: Floats,
    k: Floats,
    v: Floats,
    q_norm: Floats,
    k_norm: Floats,
    eps: float,
    positions: Ints,
    rotary: Rope,
    k_pages: Bytes,
    v_pages: Bytes,
    table: Ints,
    start: Any,
    fmt: BlockFormat,
    rotate: bool = False,
    out: Floats | None = None,
) -> Floats:
    """Norm and turn q and k, store k and v: `head_norm_rope` of both and `kv_append`, on the device in one launch.

    Parameters
    ----------
    q : float32 (tokens, heads, stride), on the device bf16
        Only the first d values of a head are used.
    k, v : float32 (tokens, kv_heads, d), on the device bf16
    q_norm, k_norm : float32 (d,)
    eps, positions, rotary
        See `head_norm_rope`.
    k_pages, v_pages, table, start, fmt
        See `kv_append`.
    rotate : bool
        Store keys rotated by a Hadamard matrix over their d values and values over blocks of 64.
    out : array as the one returned, optional
        Where to write the queries.

    Returns
    -------
    float32 (tokens, heads, d), on the device float16
        Queries; not rotated by the Hadamard matrix.
    """
    (tokens, heads, stride), d = q.shape, k.shape[2]
    if not is_device(q):
        pages = k_pages, v_pages, table, start, fmt, rotate
        context_heads(k, v, k_norm, eps, positions, rotary, *pages)
        turned = head_norm_rope(q, q_norm, eps, positions, rotary)
        if out is None:
            return turned
        out[...] = turned
        return out
    assert stride >= d, f"q {q.shape}, k {k.shape}"
    assert out is None or out.shape == (tokens, heads, d), f"out {np.shape(out)}, q {q.shape}"
    if out is None:
        out = import_cupy().empty((tokens, heads, d), np.float16)
    pages = k_pages, v_pages, table, start, fmt, rotate
    _launch((q, q_norm, out), k, v, k_norm, eps, positions, rotary, *pages)
    return out


def context_heads(
    k: Floats,
    v: Floats,
    k_norm: Floats,
    eps: float,
    positions: Ints,
    rotary: Rope,
    k_pages: Bytes,
    v_pages: Bytes,
    table: Ints,
    start: Any,
    fmt: BlockFormat,
    rotate: bool = False,
) -> None:
    """What `attention_heads` does with k and v, for tokens that ask nothing; parameters as there."""
    if is_device(k):
        pages = k_pages, v_pages, table, start, fmt, rotate
        _launch((None, None, None), k, v, k_norm, eps, positions, rotary, *pages)
        return
    d = k.shape[2]
    kv_append(k_pages, table, start, head_norm_rope(k, k_norm, eps, positions, rotary), fmt, rotate * (d & -d))
    kv_append(v_pages, table, start, v, fmt, VALUE_BLOCK if rotate else 0)


def _launch(
    queries: tuple[Any, Any, Any],
    k: Any,
    v: Any,
    k_norm: Any,
    eps: float,
    positions: Any,
    rotary: Rope,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    start: Any,
    fmt: BlockFormat,
    rotate: bool,
) -> None:
    """`queries` are q, its norm and where to write them, all None where there are none."""
    (q, q_norm, out), (tokens, kv_heads, d) = queries, k.shape
    heads, stride = (0, 0) if q is None else q.shape[1:]
    assert v.shape == k.shape, f"k {k.shape}, v {v.shape}"
    assert q is None or len(q) == tokens, f"q {q.shape}, k {k.shape}"
    assert d == page_head_dim(k_pages, fmt), f"k {k.shape}, pages {k_pages.shape}"
    assert k_pages.shape == v_pages.shape, f"{k_pages.shape}, {v_pages.shape}"
    assert len(positions) == tokens, f"{len(positions)} positions for {tokens} tokens"
    start, offset = split_count(start)
    ATTENTION_HEADS.launch(
        (-(-tokens * (heads + 2 * kv_heads) // ROWS_A_BLOCK),),
        q,
        k,
        v,
        q_norm,
        k_norm,
        positions,
        turns(rotary, current_device()),
        out,
        k_pages,
        v_pages,
        table,
        start,
        offset,
        tokens,
        heads,
        kv_heads,
        stride,
        rotary.dim // 2,
        eps,
        defines={"HEAD_DIM": d, "Q4": int(is_packed(fmt)), "ROTATE": int(rotate)},
    )
