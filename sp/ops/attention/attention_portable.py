"""Causal prefill attention over pages on any GPU from sm_80, dense or over lists of key blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.attention.attention_portable import ATTENTION_PORTABLE, queries, variant
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, split_count
from sp.ops.attention.score_rule import PLAIN, ScoreRule


def prefill(
    q: Any,
    at: PagedKV,
    scale: float,
    blocks: BlockLists | None = None,
    *,
    lse: Any = None,
    rule: ScoreRule = PLAIN,
) -> Any:
    """Compute attention of the last `n` tokens of `at` over all tokens before them, or over listed blocks of those.

    ``out[i, h] = sum_j softmax_j( scale q[i, h] · k[j, h // group] ) v[j, h // group]`` over ``j <= tokens - n + i``.
    The NumPy reference is `sp.ops.attention.attention` on the gathered pages.

    `q`: cupy float16 (n, heads, d), in the basis of the cached keys, not yet scaled; `at`: float16, at least `n`
    tokens; the kernel reads their number from `total` if there is one; `scale`: positive; usually ``d ** -0.5``;
    `blocks`: by default all key blocks. Query block ``i`` is queries ``128 i .. 128 i + 127``; `lse`: cupy float32
    (heads, n), optional, receives the natural logarithm of each row's sum of ``exp(scale * score)``; -inf for a row
    without keys; `rule`: its softcap, its sinks and, without `blocks`, its window are used, its scale is not.

    Returns cupy uint16 (n, heads, d), bf16. Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism
    and Work Partitioning", 2023.
    """
    n, heads, head_dim = q.shape
    at.check_queries(q)
    assert at.exact, "packed pages"
    assert n <= at.tokens <= len(at.table) * PAGE_TOKENS, f"{n} queries, {at.tokens} tokens, {len(at.table)} pages"
    out = import_cupy().empty((n, heads, head_dim), np.uint16)
    counts, indices, width = None, None, 0
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, -(-n // 128)) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
        width = indices.shape[2]
    assert blocks is None or rule.window is None, "lists of blocks, and a window"
    defines = variant(head_dim, rule.defines("WINDOW", "SINKS", "SOFTCAP"))
    ATTENTION_PORTABLE.launch(
        (heads * -(-n // queries(defines)),),
        q,
        at.k,
        at.v,
        at.table,
        counts,
        indices,
        out,
        lse,
        *split_count(at.count),
        n,
        heads,
        at.kv_heads,
        width,
        scale * float(np.log2(np.e)),
        None if rule.window is None else rule.first_seen(n, at.tokens, q),
        rule.cap,
        rule.sinks,
        defines=defines,
    )
    return out
