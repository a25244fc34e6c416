"""prefill: causal attention of many queries over f16 pages on Hopper, dense or over lists of key blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.signature import describe, rows_contiguous
from sp.kernels.specs.attention.attention_sm90 import ATTENTION_SM90, variant
from sp.kernels.tensor_map import tensor_map

BLOCK = 128
"""Queries of a query block, keys of a key block, tokens of a page."""
HEAD_DIMS = (128, 256)


@dataclass(frozen=True)
class BlockLists:
    """Key blocks that each query block of each query head reads.

    Parameters
    ----------
    counts : cupy int32 (heads, query_blocks)
        How many blocks are listed; 0 gives zeros.
    indices : cupy int32 (heads, query_blocks, width)
        Their numbers (block b is tokens ``128 b .. 128 b + 127``), ascending; entries past the count are not read.
    long_blocks : int
        The last so many query blocks have much longer lists than the others: they start first.
    """

    counts: Any
    indices: Any
    long_blocks: int = 0


def prefill(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    tokens: int,
    scale: float,
    blocks: BlockLists | None = None,
    *,
    out: Any = None,
    lse: Any = None,
) -> Any:
    """Attention of the last `n` of `tokens` tokens over all before them, or over the listed blocks of them.

    ``out[i, h] = sum_j softmax_j( scale q[i, h] · k[j, h // group] ) v[j, h // group]`` over ``j <= tokens - n + i``.
    The twin is `sp.ops.attention.attention` on the gathered pages.

    Parameters
    ----------
    q : cupy float16 (n, heads, d)
        Rotated queries, not yet scaled; rows and heads may be strided by multiples of 16 bytes. d is 128 or 256.
    k_pages, v_pages : cupy float16 (pool_pages, 128, kv_heads, d), or the same bytes as uint8
        ``heads % kv_heads == 0``. Slots at `tokens` and after are not used, whatever they hold.
    table : cupy int32 (pages,)
        Pages of the sequence, in order.
    tokens : int
        At least `n`.
    scale : float
        Positive; usually ``d ** -0.5``.
    blocks : BlockLists, optional
        All blocks if left out. Query block ``i`` is queries ``128 i .. 128 i + 127``.
    out : cupy uint16 (n, heads, d), optional
        Where to write.
    lse : cupy float32 (heads, n), optional
        Where to write the natural logarithm of each row's sum of ``exp(scale * score)``; -inf for a row without keys.

    Returns
    -------
    cupy uint16 (n, heads, d)
        bf16.

    References
    ----------
    Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", 2024.
    """
    cupy = import_cupy()
    n, heads, d = q.shape
    if q.dtype != np.float16 or (n > 0 and not rows_contiguous(q)):  # CuPy gives empty arrays strides of 0
        raise DeviceError(f"attention: expected float16 queries with contiguous rows, got {describe(q)}, {q.strides}")
    k_pages, v_pages = _f16_pages(k_pages), _f16_pages(v_pages)
    pool_pages, page_tokens, kv_heads, _ = k_pages.shape
    assert d in HEAD_DIMS, f"head_dim {d}"
    assert page_tokens == BLOCK, f"pages of {page_tokens} tokens"
    assert k_pages.shape == v_pages.shape == (pool_pages, BLOCK, kv_heads, d), f"{k_pages.shape}, {v_pages.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert out is None or out.shape == q.shape, f"out {out.shape}, q {q.shape}"
    assert lse is None or lse.shape == (heads, n), f"lse {lse.shape}, q {q.shape}"
    assert n <= tokens <= len(table) * BLOCK, f"{n} queries, {tokens} tokens, {len(table)} pages"
    if out is None:
        out = cupy.empty((n, heads, d), np.uint16)
    if n == 0:
        return out
    query_blocks, group = -(-n // BLOCK), heads // kv_heads
    counts = indices = None
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, query_blocks) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
    defines = variant(d)
    rows = 16384 // d  # keys of a tile
    ATTENTION_SM90.launch(
        (min(query_blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, d // 64, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, d // 64, 1)),
        *(
            tensor_map(
                pages,
                (64, pool_pages * BLOCK, d // 64, kv_heads),
                (kv_heads * d * 2, 128, d * 2),
                (64, rows, d // 64, 1),
            )
            for pages in (k_pages, v_pages)
        ),
        table,
        counts,
        indices,
        out,
        lse,
        cupy.zeros(1, np.int32),
        n,
        tokens,
        heads,
        group,
        group,  # heads that read the same pages run side by side
        0 if blocks is None else min(blocks.long_blocks, query_blocks),
        0 if indices is None else indices.shape[2],
        scale,
        defines=defines,
    )
    return out


def _f16_pages(pages: Any) -> Any:
    """Pages as float16, as a tensor map takes them."""
    if not (is_device(pages) and pages.flags.c_contiguous and pages.dtype in (np.uint8, np.float16)):
        raise DeviceError(f"attention: expected contiguous float16 or uint8 pages on the device, got {describe(pages)}")
    return pages.view(np.float16)
