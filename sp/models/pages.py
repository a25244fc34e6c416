"""PagePool: a fixed number of pages of keys and values, lent out and taken back."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.errors import PromptError
from sp.ops import kv_append, kv_gather
from sp.ops.paged_attention import paged_attention
from sp.quant import BlockFormat


class PagePool:
    """Storage for keys and values in pages of equal size.

    Parameters
    ----------
    pages : int
        Pages of the pool.
    page_tokens, kv_heads, head_dim : int
        Shape of a page.
    fmt : BlockFormat
        How each head's row of a token is packed.

    Examples
    --------
    >>> from sp.quant import F32
    >>> pool = PagePool(4, 128, 2, 64, F32)
    >>> table = pool.take(3)
    >>> pool.give_back(table[:1])
    >>> pool.in_use, pool.peak, pool.take(1) == table[:1]
    (2, 3, True)
    """

    def __init__(self, pages: int, page_tokens: int, kv_heads: int, head_dim: int, fmt: BlockFormat) -> None:
        shape = (pages, page_tokens, kv_heads, fmt.row_bytes(head_dim))
        # np.empty: the system commits a page's memory only when it is first written.
        self._k, self._v = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        self._fmt = fmt
        self._free: list[int] = []
        self.peak = 0
        self.free_all()

    def free_all(self) -> None:
        """Take every page back."""
        self._free = list(range(len(self._k)))[::-1]

    def take(self, count: int) -> list[int]:
        """Lend `count` pages, last returned first; PromptError when too few are free."""
        if count > len(self._free):
            raise PromptError(
                f"the KV cache needs {count} more pages and has {len(self._free)} of {len(self._k)} free; "
                "make it larger, or release layers as they finish"
            )
        pages = [self._free.pop() for _ in range(count)]
        self.peak = max(self.peak, self.in_use)
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Return lent pages."""
        self._free += reversed(pages)
        assert len(self._free) <= len(self._k), "a page was returned twice"

    def write(self, table: list[int], start: int, k: Floats, v: Floats) -> None:
        """Store tokens (tokens, kv_heads, head_dim) at `start` and after of the sequence `table` describes."""
        index = np.array(table, np.int64)
        kv_append(self._k, index, start, k, self._fmt)
        kv_append(self._v, index, start, v, self._fmt)

    def read(self, table: list[int], tokens: int) -> tuple[Floats, Floats]:
        """The first `tokens` tokens of the sequence `table` describes."""
        index = np.array(table, np.int64)
        return kv_gather(self._k, index, tokens, self._fmt), kv_gather(self._v, index, tokens, self._fmt)

    def attend(self, q: Floats, table: list[int], tokens: int, rotate_block: int) -> Floats:
        """See `paged_attention`; q (n, heads, head_dim) are the last of the `tokens` of the sequence."""
        return paged_attention(q, self._k, self._v, np.array(table, np.int64), tokens, self._fmt, rotate_block)

    @property
    def in_use(self) -> int:
        """Pages lent now."""
        return len(self._k) - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self._k.nbytes + self._v.nbytes

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page, keys and values."""
        return self.nbytes // len(self._k)
