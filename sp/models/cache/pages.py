"""PagePool: a fixed number of pages of keys and values, lent out and taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.errors import ConfigError, PromptError, unknown_name
from sp.kernels import import_cupy
from sp.ops import kv_append, kv_gather
from sp.ops.attention.attention_heads import attention_heads, context_heads
from sp.ops.attention.gate_output import VALUE_BLOCK
from sp.ops.attention.kv_pages import DEVICE_PAGES, kv_move
from sp.ops.attention.paged_attention import attention_output
from sp.ops.attention.tree_attention import tree_attention
from sp.quant import BlockFormat, Weight, format_by_name

KVType = Literal["f32", "f16", "q4_0"]
KV_FORMATS: dict[str, BlockFormat] = {name: format_by_name(name) for name in get_args(KVType)}
DEVICE_KV_FORMATS = tuple(name for name, fmt in KV_FORMATS.items() if fmt in DEVICE_PAGES)


@dataclass(frozen=True)
class Run:
    """The tokens of one layer in a pool.

    Attributes
    ----------
    table : int64 (blocks,), on the device int32
        Pages in token order.
    tokens : int
        Tokens stored, as the host counts them.
    start, total : int32 (1,), optional
        On the device: tokens before the last append, and with it. What kernels read, since a CUDA graph freezes
        numbers it is given.
    """

    table: Ints
    tokens: int
    start: Any = None
    total: Any = None

    @property
    def first(self) -> Any:
        """Where the next tokens go: a number, or on the device an array."""
        return self.tokens if self.start is None else self.start


class Stored(NamedTuple):
    """Keys and values of one layer as they lie in a pool.

    Attributes
    ----------
    k, v : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,), on the device int32 (blocks or more,)
    tokens : int
    fmt : BlockFormat
    """

    k: Bytes
    v: Bytes
    table: Ints
    tokens: int
    fmt: BlockFormat


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
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        shape = (pages, page_tokens, kv_heads, fmt.row_bytes(head_dim))
        # On the CPU the system commits a page's memory only when it is first written.
        xp = np if device == "cpu" else import_cupy()
        self._k, self._v = xp.empty(shape, np.uint8), xp.empty(shape, np.uint8)
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

    def write(self, run: Run, k: Floats, v: Floats, key_block: int, value_block: int) -> None:
        """Store the next tokens (tokens, kv_heads, head_dim) of a run, rotated by blocks where those are not 0."""
        kv_append(self._k, run.table, run.first, k, self._fmt, key_block)
        kv_append(self._v, run.table, run.first, v, self._fmt, value_block)

    def write_heads(
        self,
        run: Run,
        q: Floats,
        k: Floats,
        v: Floats,
        q_norm: Floats,
        k_norm: Floats,
        eps: float,
        positions: Ints,
        base: float,
        rope_dim: int,
        rotate: bool,
        out: Floats | None = None,
    ) -> Floats:
        """See `attention_heads`; k and v are the next tokens of the run."""
        pages = self._k, self._v, run.table, run.first, self._fmt
        return attention_heads(q, k, v, q_norm, k_norm, eps, positions, base, rope_dim, *pages, rotate, out)

    def write_context(
        self,
        run: Run,
        k: Floats,
        v: Floats,
        k_norm: Floats,
        eps: float,
        positions: Ints,
        base: float,
        rope_dim: int,
        rotate: bool,
    ) -> None:
        """See `context_heads`; k and v are the next tokens of the run."""
        pages = self._k, self._v, run.table, run.first, self._fmt
        context_heads(k, v, k_norm, eps, positions, base, rope_dim, *pages, rotate)

    def stored(self, run: Run) -> Stored:
        """The pages of a run."""
        return Stored(self._k, self._v, run.table, run.tokens, self._fmt)

    def read(self, run: Run) -> tuple[Floats, Floats]:
        """Keys and values of a run, as they are stored."""
        return (
            kv_gather(self._k, run.table, run.tokens, self._fmt),
            kv_gather(self._v, run.table, run.tokens, self._fmt),
        )

    def attend(self, q: Floats, run: Run, rotate_block: int, gate: Floats | None) -> Floats:
        """See `attention_output`; q (n, heads, head_dim) are the last tokens of the run."""
        pages = self._k, self._v, run.table, run.tokens, self._fmt
        return attention_output(q, *pages, rotate_block, run.total, gate)

    def attend_tree(
        self,
        q: Floats,
        run: Run,
        rotate_block: int,
        gate: Floats | None,
        seen: Ints,
        window: int | None = None,
        reader: Weight | None = None,
    ) -> Floats:
        """See `tree_attention`; q (n, heads, head_dim) are the last tokens of the run."""
        pages = self._k, self._v, run.table, run.tokens, self._fmt
        return tree_attention(q, *pages, rotate_block, run.total, seen=seen, window=window, wide=gate, reader=reader)

    def move(self, tables: Ints, total: Any, nodes: int, path: Ints, kept: Any) -> None:
        """See `kv_move`; `tables` (layers, blocks) are those of runs of the same length."""
        kv_move(self._k, self._v, tables, total, nodes, path, kept)

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
    if rotate and head_dim % VALUE_BLOCK:
        raise ConfigError(f"rotation needs a head size that is a multiple of {VALUE_BLOCK}, not {head_dim}")
    return fmt
