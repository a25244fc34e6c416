"""Causal prefill attention over f16 pages on Hopper, dense or over lists of key blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.signature import describe, rows_contiguous
from sp.kernels.specs.attention.attention_sm90 import ATTENTION_SM90, HEAD_DIMS, tile_keys, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.kv_pages import PagedKV, split_count
from sp.ops.attention.score_rule import PLAIN, ScoreRule


def prefill(
    q: Any,
    at: PagedKV,
    scale: float,
    blocks: BlockLists | None = None,
    *,
    out: Any = None,
    lse: Any = None,
    rule: ScoreRule = PLAIN,
) -> Any:
    """Compute attention of the last `n` tokens of `at` over all tokens before them, or over listed blocks of those.

    ``out[i, h] = sum_j softmax_j( scale q[i, h] · k[j, h // group] ) v[j, h // group]`` over ``j <= tokens - n + i``.
    The NumPy reference is `sp.ops.attention.attention` on the gathered pages.

    `q`: cupy float16 (n, heads, d), rotated queries, not yet scaled; rows and heads may be strided by multiples of 16
    bytes. d is 64, 128 or 256; `at`: F16 pages, as uint8 or float16, and at least `n` tokens; the kernel reads their
    number from `total` if there is one; ``heads % kv_heads == 0``; `scale`: positive; usually ``d ** -0.5``; `blocks`:
    by default all blocks. Query block ``i`` is queries ``128 i .. 128 i + 127``; `out`: cupy uint16 (n, heads, d),
    optional, receives the result; `lse`: cupy float32 (heads, n), optional, receives the natural logarithm of each
    row's sum of ``exp(scale * score)``; -inf for a row without keys; `rule`: its softcap, its sinks and, without
    `blocks`, its window are used, its scale is not.

    Returns cupy uint16 (n, heads, d), bf16. Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with
    Asynchrony and Low-precision", 2024.
    """
    cupy = import_cupy()
    n, heads, d = q.shape
    if q.dtype != np.float16 or (n > 0 and not rows_contiguous(q)):  # CuPy gives empty arrays strides of 0
        raise DeviceError(f"attention: expected float16 queries with contiguous rows, got {describe(q)}, {q.strides}")
    k_pages, v_pages = _f16_pages(at.k), _f16_pages(at.v)
    pool_pages, page_tokens, kv_heads, _ = k_pages.shape
    assert d in HEAD_DIMS, f"head_dim {d}"
    assert page_tokens == BLOCK, f"pages of {page_tokens} tokens"
    assert k_pages.shape == v_pages.shape == (pool_pages, BLOCK, kv_heads, d), f"{k_pages.shape}, {v_pages.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert out is None or out.shape == q.shape, f"out {out.shape}, q {q.shape}"
    assert lse is None or lse.shape == (heads, n), f"lse {lse.shape}, q {q.shape}"
    assert n <= at.tokens <= len(at.table) * BLOCK, f"{n} queries, {at.tokens} tokens, {len(at.table)} pages"
    if out is None:
        out = cupy.empty((n, heads, d), np.uint16)
    if n == 0:
        return out
    query_blocks, group = -(-n // BLOCK), heads // kv_heads
    counts = indices = None
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, query_blocks) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
    assert blocks is None or rule.window is None, "lists of blocks, and a window"
    defines = variant(d) | rule.defines("WINDOW", "SINKS", "SOFTCAP")
    ATTENTION_SM90.launch(
        (min(query_blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, d // 64, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, d // 64, 1)),
        *(
            tensor_map(
                pages,
                (64, pool_pages * BLOCK, d // 64, kv_heads),
                (kv_heads * d * 2, 128, d * 2),
                (64, tile_keys(d), d // 64, 1),
            )
            for pages in (k_pages, v_pages)
        ),
        at.table,
        counts,
        indices,
        out,
        lse,
        cupy.zeros(1, np.int32),
        *split_count(at.count),
        n,
        heads,
        group,
        group,  # heads that share pages run at the same time, so that these stay in L2
        0 if blocks is None else min(blocks.long_blocks, query_blocks),
        0 if indices is None else indices.shape[2],
        scale,
        None if rule.window is None else rule.first_seen(n, at.tokens, q),
        rule.cap,
        rule.sinks,
        defines=defines,
    )
    return out


def _f16_pages(pages: Any) -> Any:
    """Return pages as float16, the type of the tensor map."""
    if not (is_device(pages) and pages.flags.c_contiguous and pages.dtype in (np.uint8, np.float16)):
        raise DeviceError(f"attention: expected contiguous float16 or uint8 pages on the device, got {describe(pages)}")
    return pages.view(np.float16)
