"""Paged caches on the device for tests: scattered tables, poison wherever no token lies, and the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.ops import hadamard, kv_gather
from sp.ops.attention.attention import attention
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PagedKV, kv_append
from sp.quant import F16, Q4_0, Q8_0, BlockFormat
from sp.quant.cached import K5, V4

SHAPES = [(2, 1, 64), (14, 2, 64), (10, 2, 128), (4, 2, 128), (12, 2, 128), (2, 2, 256), (12, 2, 256)]
"""Query heads, KV heads, head size."""
Formats = BlockFormat | tuple[BlockFormat, BlockFormat]
PLAIN = [(F16, False), (Q4_0, False), (Q4_0, True)]
MIXED = [((K5, V4), True), (Q8_0, True), ((Q8_0, Q4_0), True), ((F16, Q4_0), True), ((Q4_0, F16), False)]
"""Formats of keys and values, and whether they are rotated."""


def names(value: Any) -> str | None:
    """What a test calls formats."""
    if isinstance(value, tuple) and isinstance(value[0], BlockFormat):
        return "-".join(fmt.name for fmt in value)
    return value.name if isinstance(value, BlockFormat) else None


def some_basis(rng: np.random.Generator, kv_heads: int, d: int) -> KeyBasis:
    """Channels in any order, of scales and offsets of their own."""
    mean, keys, queries = rng.standard_normal((kv_heads, d)), *np.exp(rng.standard_normal((2, kv_heads, d)) / 2)
    return KeyBasis.measured(mean, keys, queries)


@dataclass
class PagedCase:
    """Keys and values of a sequence in pages, on the host and on the device."""

    k_pages: np.ndarray
    v_pages: np.ndarray
    table: np.ndarray
    tokens: int
    fmt: BlockFormat
    value_fmt: BlockFormat
    rotated: bool
    basis: KeyBasis | None

    @classmethod
    def make(
        cls, rng: np.random.Generator, tokens: int, kv_heads: int, d: int, fmt: Formats, rotate: bool = False
    ) -> PagedCase:
        """Random keys and values; slots past the last token and unused pages are full of 0xFF (a NaN)."""
        blocks = -(-tokens // 128)
        table = rng.permutation(blocks + 3)[:blocks]
        formats = fmt if isinstance(fmt, tuple) else (fmt, fmt)
        pages = [np.full((blocks + 3, 128, kv_heads, one.row_bytes(d)), 0xFF, np.uint8) for one in formats]
        values = [rng.standard_normal((tokens, kv_heads, d)).astype(np.float32) for _ in range(2)]
        basis = some_basis(rng, kv_heads, d) if formats[0] is K5 else None
        kv_append(pages[0], table, 0, values[0], formats[0], d if rotate else 0, basis)
        kv_append(pages[1], table, 0, values[1], formats[1], 64 if rotate else 0)
        return cls(*pages, table, tokens, *formats, rotate, basis)

    @property
    def exact(self) -> bool:
        """Whether nothing is packed."""
        return self.fmt is F16 and self.value_fmt is F16

    def device(self, total: Any = None) -> PagedKV:
        """The same on the device; `total` is the number of tokens where a graph reads it."""
        import cupy

        pages = cupy.asarray(self.k_pages), cupy.asarray(self.v_pages), cupy.asarray(self.table.astype(np.int32))
        basis = None if self.basis is None else self.basis.on_device()
        how = {"total": total, "value_fmt": self.value_fmt, "basis": basis}
        return PagedKV(*pages, self.tokens, self.fmt, self.rotated, **how)

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as they are stored, in float64."""
        formats = self.fmt, self.value_fmt
        pages = zip((self.k_pages, self.v_pages), formats, strict=True)
        k, v = (kv_gather(one, self.table, self.tokens, fmt).astype(np.float64) for one, fmt in pages)
        return k, v

    def queries(self, q: np.ndarray) -> np.ndarray:
        """Queries in the basis of the keys, in float64."""
        q = q.astype(np.float64)
        if self.basis is not None:
            return self.basis.queries(q)
        return hadamard(q, q.shape[2]) if self.rotated else q

    def finished(self, out: np.ndarray, wide: np.ndarray | None) -> np.ndarray:
        """Outputs rotated back and gated."""
        out = hadamard(out, 64) if self.rotated else out
        return out if wide is None else out / (1 + np.exp(-wide[..., out.shape[2] :].astype(np.float64)))

    def want(self, q: np.ndarray) -> np.ndarray:
        """Attention in float64 over the stored values, in their basis."""
        return attention(self.queries(q), *self.stored())

    def want_finished(self, q: np.ndarray, wide: np.ndarray | None) -> np.ndarray:
        """`want`, rotated back and gated."""
        return self.finished(self.want(q), wide)
