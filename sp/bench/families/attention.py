"""Attention over paged keys and values: dense, block-sparse, in 8 bits; and importance of cached keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sp.bench.cases import Case, clustered, family, normal, paths
from sp.kernels import import_cupy
from sp.ops.attention.attention import paged_attention, prefill_attention
from sp.ops.attention.attention_sm90 import prefill as in_float16
from sp.ops.attention.byte_attention.attend import byte_pages, prefill
from sp.ops.attention.importance import Reduction, importance
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.ops.sparse.block_lists import density
from sp.ops.sparse.block_means import block_means
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity, select_on_device
from sp.ops.sparse.sparse_attention import sparse_attention
from sp.quant import F16

SHAPES = ((128, 16, 8), (256, 24, 4))  # (head_dim, query heads, KV heads) of the drafter and of the target


@family("paged_attention")
def paged_cases() -> Iterator[Case]:
    """Yield dense prefills of 32K tokens on all paths, and one token after 32K."""
    tokens = 32768
    for head_dim, q_heads, kv_heads in SHAPES:
        kv = pages(tokens, kv_heads, head_dim)
        config = {"head_dim": head_dim, "q_heads": q_heads, "kv_heads": kv_heads, "kv": F16.name, "tokens": tokens}
        for rows in (tokens, 1):
            q = normal(rows, q_heads, head_dim).astype(np.float16)
            run = partial(paged_attention, q, kv)
            pairs = rows * (tokens - (rows - 1) / 2)
            for path in paths() if rows > 1 else ("portable",):
                moved = 2 * kv.k.nbytes + q.nbytes
                flops = 4 * pairs * q_heads * head_dim
                yield Case({**config, "rows": rows}, path, run, bytes=moved, flops=flops, graph=rows == 1)


def pages(tokens: int, kv_heads: int, head_dim: int) -> PagedKV:
    """Draw random keys and values under a shuffled block table."""
    cupy, count = import_cupy(), -(-tokens // PAGE_TOKENS)
    shape = (count, PAGE_TOKENS, kv_heads, head_dim)
    k, v = (normal(*shape).astype(np.float16).view(np.uint8) for _ in range(2))
    return PagedKV(k, v, cupy.random.permutation(count).astype(np.int32), tokens, F16)


TOKENS = 131072
SELECTORS = (
    FlashPrefill(0.1),
    TopDensity(0.05),
    replace(FlashPrefill(0.1), share="group", visibility="first", mean_correction=True),
)


@family("flashprefill")
def sparse_cases() -> Iterator[Case]:
    """Yield selection and attention over 128K tokens; `read` is the density. FLOP: products with mean keys, and with
    the visible keys and values of selected blocks."""
    for head_dim, heads, kv_heads in SHAPES:
        q, kv = clustered(TOKENS, heads, kv_heads, head_dim)
        scale, means = head_dim**-0.5, block_means(kv.k, kv.table, TOKENS, kv.fmt)
        for selector in SELECTORS:
            lists = select_on_device(selector, q, means, TOKENS, scale)
            counts = lists.counts.get().astype(np.int64)
            shape = {"head_dim": head_dim, "q_heads": heads, "kv_heads": kv_heads, "tokens": TOKENS, "kv": "f16"}
            options = {"selector": type(selector).__name__, **asdict(selector)}
            config: dict[str, Any] = {**shape, **options, "read": round(density(counts), 4)}
            scored, live = score_flops(TOKENS, heads, head_dim), live_flops(counts, head_dim)
            moved = q.nbytes + means.nbytes
            choose = partial(select_on_device, selector, q, means, TOKENS, scale)
            yield Case({**config, "stage": "select"}, "portable", choose, bytes=moved, flops=scored)
            for path in paths():
                attend = partial(prefill_attention, q, kv, scale, lists)
                both = partial(sparse_attention, q, kv, scale, selector)
                moved = 2 * q.nbytes + kv.k.nbytes + kv.v.nbytes
                yield Case({**config, "stage": "attend"}, path, attend, bytes=moved, flops=live)
                yield Case({**config, "stage": "layer"}, path, both, bytes=moved + q.nbytes, flops=live + scored)


def live_flops(counts: Any, head_dim: int) -> float:
    """Count the FLOP of the queries with visible keys and values of selected blocks; the diagonal block is visible by
    half. `counts`: selected blocks, the diagonal one included; all tokens are queries and fill their blocks."""
    pairs = int(counts.sum()) * BLOCK * BLOCK - counts.size * BLOCK * (BLOCK - 1) // 2
    return float(4 * head_dim * pairs)


def score_flops(tokens: int, heads: int, head_dim: int) -> float:
    """Count the FLOP of all queries with the mean keys of the blocks that begin no later."""
    blocks = tokens // BLOCK
    return 2.0 * heads * head_dim * BLOCK * (blocks * (blocks + 1) / 2)


BYTE_SHAPES = ((128, 16, 8), (64, 9, 3))  # values of a head, query heads, heads of keys and values
DENSITIES = (0.05, 0.24)
SHORT = 8192


@family("byte_attention")
def byte_cases() -> Iterator[Case]:
    """Yield 8-bit and f16 attention over 8K and 128K tokens of `clustered` inputs; FLOP as in `flashprefill`. Empty on
    GPUs other than Hopper."""
    lengths = (SHORT, TOKENS) if "sm_90a" in paths() else ()
    for tokens, (head_dim, heads, kv_heads) in product(lengths, BYTE_SHAPES):
        q, kv = clustered(tokens, heads, kv_heads, head_dim)
        scale, means = head_dim**-0.5, block_means(kv.k, kv.table, tokens, kv.fmt)
        shape = {"head_dim": head_dim, "q_heads": heads, "kv_heads": kv_heads, "tokens": tokens}
        rounded, stored = byte_pages(kv), kv.k.nbytes + kv.v.nbytes
        yield Case({**shape, "stage": "round"}, "sm_90a", partial(byte_pages, kv), bytes=stored * 2, flops=0.0)
        for share in DENSITIES:
            selector = TopDensity(share)
            lists = select_on_device(selector, q, means, tokens, scale)
            counts = lists.counts.get().astype(np.int64)
            config: dict[str, Any] = {**shape, **asdict(selector), "read": round(density(counts), 4), "stage": "attend"}
            flops = live_flops(counts, head_dim)
            eight, sixteen = partial(prefill, q, rounded, scale, lists), partial(in_float16, q, kv, scale, lists)
            yield Case({**config, "math": "int8"}, "sm_90a", eight, bytes=2 * q.nbytes + stored // 2, flops=flops)
            yield Case({**config, "math": "f16"}, "sm_90a", sixteen, bytes=2 * q.nbytes + stored, flops=flops)


QUERIES = 8


@family("importance")
def importance_cases() -> Iterator[Case]:
    """Yield eight queries over 2K, 32K and 128K keys, folded into another layer's result. Bytes: the keys, once."""
    for head_dim, heads, kv_heads in SHAPES:
        for tokens in (2048, 32768, 131072):
            kv = pages(tokens, kv_heads, head_dim)
            q = normal(QUERIES, heads, head_dim).astype(np.float16)
            running = import_cupy().zeros((QUERIES, tokens), np.float32)
            run = partial(importance, q, kv, Reduction(), running)
            config = {"head_dim": head_dim, "q_heads": heads, "kv_heads": kv_heads, "kv": "f16", "queries": QUERIES}
            flops = 2.0 * QUERIES * heads * head_dim * tokens
            yield Case({**config, "tokens": tokens}, "portable", run, bytes=kv.k.nbytes, flops=flops)
