"""PagePool: a fixed number of pages of keys and values, lent out and taken back."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from sp.arrays import Ints
from sp.errors import ConfigError, PromptError, unknown_name
from sp.kernels import import_cupy
from sp.ops.attention.gate_output import rotated_block
from sp.ops.attention.kv_pages import DEVICE_PAGES, kv_commit
from sp.ops.attention.paged_kv import PagedKV
from sp.quant import BlockFormat, format_by_name

KVType = Literal["f32", "f16", "q4_0"]
KV_FORMATS: dict[str, BlockFormat] = {name: format_by_name(name) for name in get_args(KVType)}
QUANTISED_KV = tuple(name for name, fmt in KV_FORMATS.items() if fmt.block_size > 1)
DEVICE_KV_FORMATS = tuple(name for name, fmt in KV_FORMATS.items() if fmt in DEVICE_PAGES)


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
    rotated : bool
        Whether keys and values are stored rotated; see `PagedKV`.
    device : {"cpu", "cuda"}

    Examples
    --------
    >>> from sp.quant import F32
    >>> pool = PagePool(4, 128, 2, 64, F32)
    >>> table = pool.take(3)
    >>> pool.give_back(table[:1])
    >>> pool.in_use, pool.peak, pool.take(1) == table[:1]
    (2, 3, True)
    """

    def __init__(
        self,
        pages: int,
        page_tokens: int,
        kv_heads: int,
        head_dim: int,
        fmt: BlockFormat,
        rotated: bool = False,
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        shape = (pages, page_tokens, kv_heads, fmt.row_bytes(head_dim))
        # On the CPU the system commits a page's memory only when it is first written.
        xp = np if device == "cpu" else import_cupy()
        self._k, self._v = xp.empty(shape, np.uint8), xp.empty(shape, np.uint8)
        self._fmt, self._rotated = fmt, rotated
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

    def view(self, table: Ints, tokens: int, start: Any = None, total: Any = None) -> PagedKV:
        """Tokens of a sequence that lie in pages of this pool; see `PagedKV`."""
        return PagedKV(self._k, self._v, table, tokens, self._fmt, self._rotated, start, total)

    def move(self, tables: Ints, total: Any, nodes: int, path: Ints, kept: Any) -> None:
        """See `kv_commit`; `tables` (layers, blocks) are those of layers of the same length."""
        kv_commit(self._k, self._v, tables, total, nodes, path, kept)

    @property
    def in_use(self) -> int:
        """Pages lent now."""
        return len(self._k) - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return int(self._k.nbytes + self._v.nbytes)

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page, keys and values."""
        return self.nbytes // len(self._k)


def page_format(kv: str, head_dim: int, rotate: bool, device: Literal["cpu", "cuda"]) -> BlockFormat:
    """How a cache of that name packs heads of a size; ConfigError if it cannot, or cannot rotate them.

    >>> page_format("q4_0", 128, True, "cuda").name
    'Q4_0'
    """
    if kv not in KV_FORMATS:
        raise unknown_name("KV format", kv, KV_FORMATS)
    if device == "cuda" and kv not in DEVICE_KV_FORMATS:
        raise ConfigError(f"the GPU caches keys and values as {' or '.join(DEVICE_KV_FORMATS)}, not {kv}")
    fmt = KV_FORMATS[kv]
    if head_dim % fmt.block_size:
        raise ConfigError(
            f"KV format {kv} packs {fmt.block_size} values a block, which does not divide the head size "
            f"{head_dim}; use f16 or f32"
        )
    if rotate and rotated_block(head_dim) == 1:
        raise ConfigError(f"heads of {head_dim} values cannot be rotated, for their size is odd; leave --rotate out")
    return fmt


def rotates(kv: str, rotate: bool | None) -> bool:
    """Whether a cache of that name rotates keys and values: as it was said, and by default where they are quantised.

    What a format quantises it packs in blocks whose size is a power of two, so that all its heads can be rotated.

    Examples
    --------
    >>> rotates("q4_0", None), rotates("f16", None), rotates("q4_0", False), rotates("f16", True)
    (True, False, False, True)
    """
    return kv in QUANTISED_KV if rotate is None else rotate


def cache_name(kv: str, rotate: bool | None) -> str:
    """A cache as records name it.

    Examples
    --------
    >>> cache_name("q4_0", None), cache_name("f16", None)
    ('q4_0 rotated', 'f16')
    """
    return f"{kv} rotated" if rotates(kv, rotate) else kv
