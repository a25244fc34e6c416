"""Paged caches on the device for tests: scattered tables, poison wherever no token lies, and the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.ops import hadamard, kv_gather
from sp.ops.attention.attention import attention
from sp.ops.attention.kv_pages import PagedKV, kv_append
from sp.quant import BlockFormat

SHAPES = [(2, 1, 64), (14, 2, 64), (10, 2, 128), (4, 2, 128), (12, 2, 128), (2, 2, 256), (12, 2, 256)]
"""Query heads, KV heads, head size."""


@dataclass
class PagedCase:
    """Keys and values of a sequence in pages, on the host and on the device."""

    k_pages: np.ndarray
    v_pages: np.ndarray
    table: np.ndarray
    tokens: int
    fmt: BlockFormat
    rotate_block: int

    @classmethod
    def make(
        cls, rng: np.random.Generator, tokens: int, kv_heads: int, d: int, fmt: BlockFormat, rotate: bool = False
    ) -> PagedCase:
        """Random keys and values; slots past the last token and unused pages are full of 0xFF (a NaN)."""
        blocks = -(-tokens // 128)
        table = rng.permutation(blocks + 3)[:blocks]
        pages = [np.full((blocks + 3, 128, kv_heads, fmt.row_bytes(d)), 0xFF, np.uint8) for _ in range(2)]
        for one, block in zip(pages, (d, 64), strict=True):
            values = rng.standard_normal((tokens, kv_heads, d)).astype(np.float32)
            kv_append(one, table, 0, values, fmt, block if rotate else 0)
        return cls(*pages, table, tokens, fmt, d if rotate else 0)

    def device(self, total: Any = None) -> PagedKV:
        """The same on the device; `total` is the number of tokens where a graph reads it."""
        import cupy

        pages = cupy.asarray(self.k_pages), cupy.asarray(self.v_pages), cupy.asarray(self.table.astype(np.int32))
        return PagedKV(*pages, self.tokens, self.fmt, self.rotate_block > 0, total=total)

    def want(self, q: np.ndarray) -> np.ndarray:
        """Attention in float64 over the stored values, in their basis."""
        q = q.astype(np.float64)
        if self.rotate_block:
            q = hadamard(q, self.rotate_block)
        k, v = (kv_gather(one, self.table, self.tokens, self.fmt) for one in (self.k_pages, self.v_pages))
        return attention(q, k.astype(np.float64), v.astype(np.float64))

    def want_finished(self, q: np.ndarray, wide: np.ndarray | None) -> np.ndarray:
        """`want`, rotated back and gated."""
        out = self.want(q)
        if self.rotate_block:
            out = hadamard(out, 64)
        if wide is not None:
            out = out / (1 + np.exp(-wide[..., out.shape[2] :].astype(np.float64)))
        return out
