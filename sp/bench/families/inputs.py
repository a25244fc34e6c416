"""Random inputs on the device. Normal ones: products of zeros or of one sign draw less power and run faster."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.attention.paged_kv import PagedKV
from sp.quant import F16


def normal(*shape: int) -> Any:
    """Normal float32 values."""
    return import_cupy().random.standard_normal(shape, np.float32)


def bf16(*shape: int) -> Any:
    """Normal values cut to bf16."""
    return (normal(*shape).view(np.uint32) >> 16).astype(np.uint16)


def clustered(tokens: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, PagedKV]:
    """Queries, and keys and values under a shuffled table, with attention that is not flat.

    The keys of a block of 128 tokens are one of 64 N(0, 1) centres, drawn for each block and KV head, plus N(0, 1);
    queries likewise for each query head; values N(0, 1). All f16.
    """
    cupy, blocks = import_cupy(), tokens // PAGE_TOKENS
    assert tokens == blocks * PAGE_TOKENS, f"{tokens} tokens are no whole number of pages"
    random = cupy.random.default_rng(tokens + head_dim)
    centres = random.standard_normal((64, head_dim), np.float32)

    def rows(count: int, centred: bool) -> Any:
        made = cupy.empty((blocks, PAGE_TOKENS, count, head_dim), np.float16)
        middle = centres[random.integers(0, 64, (blocks, count))] if centred else 0
        for slot in range(PAGE_TOKENS):  # a slice at a time: float32 noise of all rows would take gigabytes
            made[:, slot] = middle + random.standard_normal((blocks, count, head_dim), np.float32)
        return made

    q = rows(heads, True).reshape(tokens, heads, head_dim)
    table = cupy.argsort(random.random(blocks)).astype(np.int32)
    pages = []
    for centred in (True, False):
        scattered = cupy.empty((blocks, PAGE_TOKENS, kv_heads, head_dim), np.float16)
        scattered[table] = rows(kv_heads, centred)
        pages.append(scattered.view(np.uint8))
    return q, PagedKV(pages[0], pages[1], table, tokens, F16)
