"""PagedKV: where the keys and values of one sequence lie in one layer, for every op that stores or reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.kernels import import_cupy
from sp.ops.attention.gate_output import VALUE_BLOCK, rotated_block
from sp.ops.attention.kv_pages import kv_append, kv_gather, page_head_dim, unpacked_pages
from sp.quant import F16, BlockFormat


@dataclass(frozen=True)
class PagedKV:
    """Keys and values of one sequence in one layer: pages of a pool, named in order by a block table. `k`, `v`: uint8
    (pool_pages, page_tokens, kv_heads, row_bytes), on the device pages hold 128 tokens. Slots at `tokens` and after are
    not read, whatever they hold; `rotated`: whether keys are stored rotated by a Hadamard matrix over `key_block`
    values, and values over `value_block`; `start`, `total`: int32 (1,), optional, on the device: tokens before the last
    append, and with it. What kernels read, since a CUDA graph freezes numbers it is given.

    >>> from sp.quant import F32
    >>> at = PagedKV(np.zeros((2, 4, 1, 8), np.uint8), np.zeros((2, 4, 1, 8), np.uint8), np.array([1]), 0, F32)
    >>> at.append(np.ones((3, 1, 2), np.float32), np.ones((3, 1, 2), np.float32))
    >>> at.head_dim, replace(at, tokens=3).gather()[0].shape
    (2, (3, 1, 2))
    """

    k: Bytes
    v: Bytes
    table: Ints  # int64 (blocks,), on the device int32 (blocks or more,), pages of the sequence, in order
    tokens: int  # tokens stored, as the host counts them
    fmt: BlockFormat  # how each head's row of a token is packed; on the device F16 or Q4_0
    rotated: bool = False
    start: Any = None
    total: Any = None

    @property
    def kv_heads(self) -> int:
        """Heads of keys and of values."""
        return int(self.k.shape[2])

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return int(self.k.shape[3]) // self.fmt.block_bytes * self.fmt.block_size

    @property
    def key_block(self) -> int:
        """Values over which keys are rotated, and queries must be: the largest power of two in a head; 0 for none."""
        return rotated_block(self.head_dim) if self.rotated else 0

    @property
    def value_block(self) -> int:
        """Values over which values are rotated; 0 for none."""
        return rotated_block(self.head_dim, VALUE_BLOCK) if self.rotated else 0

    @property
    def first(self) -> Any:
        """Where the next tokens go: a number, or on the device an array."""
        return self.tokens if self.start is None else self.start

    @property
    def count(self) -> Any:
        """Tokens stored: a number, or on the device an array."""
        return self.tokens if self.total is None else self.total

    def append(self, k: Floats, v: Floats) -> None:
        """Store the next tokens (tokens, kv_heads, head_dim) in place; see `kv_append`."""
        kv_append(self.k, self.table, self.first, k, self.fmt, self.key_block)
        kv_append(self.v, self.table, self.first, v, self.fmt, self.value_block)

    def keys(self) -> Floats:
        """Keys as they are stored: (tokens, kv_heads, head_dim); see `kv_gather`."""
        return kv_gather(self.k, self.table, self.tokens, self.fmt)

    def gather(self) -> tuple[Floats, Floats]:
        """Keys and values as they are stored."""
        return self.keys(), kv_gather(self.v, self.table, self.tokens, self.fmt)

    def unpacked(self) -> PagedKV:
        """The same tokens on the device in float16 pages of their own, in order."""
        k, v = (unpacked_pages(one, self.table, self.tokens, self.fmt).view(np.uint8) for one in (self.k, self.v))
        return replace(self, k=k, v=v, table=import_cupy().arange(len(k), dtype=np.int32), fmt=F16)

    def check_queries(self, q: Any) -> None:
        """Hold pages on the device against queries (n, heads, head_dim)."""
        _, heads, head_dim = q.shape
        assert page_head_dim(self.k, self.fmt) == head_dim, f"q {q.shape}, pages {self.k.shape}"
        assert self.k.shape == self.v.shape, f"{self.k.shape}, {self.v.shape}"
        assert heads % self.kv_heads == 0, f"{heads} query heads on {self.kv_heads} kv heads"
