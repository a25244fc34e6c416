"""Causal attention over paged keys and values: prefill of whole prompts, and decoding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sp.bench.cases import Case, family, paths
from sp.bench.families.inputs import normal
from sp.kernels import import_cupy
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.attention.paged_attention import paged_attention
from sp.ops.attention.paged_kv import PagedKV
from sp.quant import F16

SHAPES = ((128, 16, 8), (256, 24, 4))
"""(head_dim, query heads, KV heads) of the drafter and of the target."""


@family("paged_attention")
def cases() -> Iterator[Case]:
    """Dense prefill of 32K tokens on both paths, and one token after 32K."""
    tokens = 32768
    for head_dim, q_heads, kv_heads in SHAPES:
        at = pages(tokens, kv_heads, head_dim)
        config = {"head_dim": head_dim, "q_heads": q_heads, "kv_heads": kv_heads, "kv": F16.name, "tokens": tokens}
        for rows in (tokens, 1):
            q = normal(rows, q_heads, head_dim).astype(np.float16)
            run = partial(paged_attention, q, at)
            pairs = rows * (tokens - (rows - 1) / 2)
            for path in paths() if rows > 1 else ("portable",):
                moved = 2 * at.k.nbytes + q.nbytes
                flops = 4 * pairs * q_heads * head_dim
                yield Case({**config, "rows": rows}, path, run, bytes=moved, flops=flops, graph=rows == 1)


def pages(tokens: int, kv_heads: int, head_dim: int) -> PagedKV:
    """Random keys and values under a shuffled table."""
    cupy, count = import_cupy(), -(-tokens // PAGE_TOKENS)
    shape = (count, PAGE_TOKENS, kv_heads, head_dim)
    k, v = (normal(*shape).astype(np.float16).view(np.uint8) for _ in range(2))
    return PagedKV(k, v, cupy.random.permutation(count).astype(np.int32), tokens, F16)
