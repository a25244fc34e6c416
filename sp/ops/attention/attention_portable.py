"""prefill: causal attention of many queries over pages on any card from sm_80, dense or over lists of key blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.attention.attention_portable import ATTENTION_PORTABLE, queries, variant
from sp.ops.attention.kv_pages import PAGE_TOKENS, is_packed, page_head_dim
from sp.quant import BlockFormat


def prefill(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    tokens: int,
    fmt: BlockFormat,
    scale: float,
    blocks: Any = None,
    *,
    lse: Any = None,
) -> Any:
    """Attention of the last `n` of `tokens` tokens over all before them, or over the listed blocks of them.

    ``out[i, h] = sum_j softmax_j( scale q[i, h] · k[j, h // group] ) v[j, h // group]`` over ``j <= tokens - n + i``.
    The twin is `sp.ops.attention.attention` on the gathered pages.

    Parameters
    ----------
    q : cupy float16 (n, heads, d)
        In the basis of the cached keys, not yet scaled.
    k_pages, v_pages : cupy uint8 (pool_pages, 128, kv_heads, row_bytes)
        Slots at `tokens` and after are not used, whatever they hold.
    table : cupy int32 (pages,)
        Pages of the sequence, in order.
    tokens : int
        At least `n`.
    fmt : BlockFormat
        F16 or Q4_0.
    scale : float
        Positive; usually ``d ** -0.5``.
    blocks : sp.ops.attention.attention_sm90.BlockLists, optional
        All key blocks if left out. Query block ``i`` is queries ``128 i .. 128 i + 127``.
    lse : cupy float32 (heads, n), optional
        Where to write the natural logarithm of each row's sum of ``exp(scale * score)``; -inf for a row without keys.

    Returns
    -------
    cupy uint16 (n, heads, d)
        bf16.

    References
    ----------
    Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
    """
    n, heads, head_dim = q.shape
    kv_heads = k_pages.shape[2]
    assert page_head_dim(k_pages, fmt) == head_dim, f"q {q.shape}, pages {k_pages.shape}"
    assert k_pages.shape == v_pages.shape, f"{k_pages.shape}, {v_pages.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert n <= tokens <= len(table) * PAGE_TOKENS, f"{n} queries, {tokens} tokens, {len(table)} pages"
    out = import_cupy().empty((n, heads, head_dim), np.uint16)
    counts, indices, width = None, None, 0
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, -(-n // 128)) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
        width = indices.shape[2]
    defines = variant(head_dim, is_packed(fmt))
    ATTENTION_PORTABLE.launch(
        (heads * -(-n // queries(defines)),),
        q,
        k_pages,
        v_pages,
        table,
        counts,
        indices,
        out,
        lse,
        n,
        tokens,
        heads,
        kv_heads,
        width,
        scale * float(np.log2(np.e)),
        defines=defines,
    )
    return out
