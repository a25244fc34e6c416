"""PagedKV and its pages: store rows of K or V in pages named by a block table, load and move them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.attention_rows import (
    GATHER_THREADS,
    HEAD_DIMS,
    KV_APPEND,
    KV_COMMIT,
    KV_GATHER,
    MOVE_THREADS,
    ROWS_A_BLOCK,
)
from sp.kernels.specs.attention.page_rows import F16_ROWS, K5_ROWS, Q4_ROWS, Q8_ROWS, V4_ROWS
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.recent_rows import RecentRows
from sp.ops.attention.stored_rows import NOT_HELD, storing
from sp.ops.hadamard import hadamard
from sp.ops.matmul.few_rows import decoded
from sp.ops.threads import run_parallel, team, token_slices
from sp.quant import F16, Q4_0, Q8_0, BlockFormat
from sp.quant.cached import K4, K5, V4

PAGE_TOKENS = 128  # tokens per page on the device; on the CPU pages may have any size
DEVICE_PAGES = {F16: F16_ROWS, Q8_0: Q8_ROWS, Q4_0: Q4_ROWS, K5: K5_ROWS, K4: V4_ROWS, V4: V4_ROWS}
"""Formats of pages on the device, with their numbers in ``page_rows.cuh``."""
VALUE_BLOCK = 64  # llama.cpp rotates values in blocks of 64, whatever the head size


def kv_append(
    pages: Bytes,
    table: Ints,
    start: int,
    values: Floats,
    fmt: BlockFormat,
    rotate_block: int = 0,
    basis: KeyBasis | None = None,
    more: int = 0,
) -> None:
    """Pack `values` and store them from token `start` on, in place.

    Token ``t`` of a sequence is in page ``table[t // page_tokens]``, slot ``t % page_tokens``; each head's row is
    packed separately.

    Parameters
    ----------
    pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
        On the device pages hold 128 tokens.
    table : int64 (blocks,), on the device int32
        Pages of this sequence, in order; must reach token ``start + tokens``.
    start : int, or on the device int32 (1,)
        Tokens stored already. A CUDA graph reads the array in every replay.
    values : float32 (tokens, kv_heads, head_dim), on the device float16 or bf16
    fmt : BlockFormat
        F32, F16, Q4_0, ...; head_dim must be whole blocks. On the device one of `DEVICE_PAGES`.
    rotate_block : int
        If not 0, heads are first rotated in blocks of this size; see `hadamard`.
    basis : KeyBasis, optional
        The basis of keys, in place of that rotation.
    more : int
        Tokens to add to `start`.

    Examples
    --------
    >>> pages = np.zeros((3, 2, 1, 4), np.uint8)  # 3 pages of 2 tokens, 1 head of 2 values
    >>> kv = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    >>> kv_append(pages, np.array([2, 0]), 0, kv, F16)
    >>> kv_gather(pages, np.array([2, 0]), 3, F16).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    if is_device(pages):
        return _append_on_device(pages, table, start, values, fmt, rotate_block, basis, more)
    page_tokens, start = pages.shape[1], start + more
    assert start + len(values) <= len(table) * page_tokens, f"{start}+{len(values)} past {len(table)} pages"
    if basis is not None:
        values = basis.stored(values)
    elif rotate_block:
        values = hadamard(values, rotate_block)
    missed = np.zeros(1, np.int64)
    values, table = np.ascontiguousarray(values), np.ascontiguousarray(table, np.int64)
    storing_all = storing(pages, table, start, values, fmt, missed)
    if storing_all is not None:
        team().do([storing_all])
        if missed[0]:
            raise ConfigError(NOT_HELD)
        return
    if fmt is F16 and not (np.abs(values) < 65520).all():  # as in the compiled loop; NaN fails the comparison too
        raise ConfigError(NOT_HELD)
    slots = np.arange(start, start + len(values))
    pages[table[slots // page_tokens], slots % page_tokens] = fmt.encode(values)


def kv_gather(pages: Bytes, table: Ints, tokens: int, fmt: BlockFormat) -> Floats:
    """Unpack the first `tokens` tokens of a sequence: the inverse of `kv_append`.

    Parameters
    ----------
    pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,)
    tokens : int
    fmt : BlockFormat

    Returns
    -------
    float32 (tokens, kv_heads, head_dim), on the device float16

    Examples
    --------
    >>> from sp.quant import F32
    >>> kv_gather(np.zeros((1, 4, 2, 8), np.uint8), np.array([0]), 3, F32).shape
    (3, 2, 2)
    """
    if is_device(pages):
        values: Floats = _unpack(pages, table, tokens, fmt, tokens)
        return values
    page_tokens = pages.shape[1]
    assert tokens <= len(table) * page_tokens, f"{tokens} tokens in {len(table)} pages of {page_tokens}"
    head_dim = pages.shape[3] // fmt.block_bytes * fmt.block_size
    out = np.empty((tokens, pages.shape[2], head_dim), np.float32)

    def unpack(part: slice) -> None:
        slots = np.arange(part.start, part.stop)
        rows = pages[table[slots // page_tokens], slots % page_tokens]
        decoded(rows.reshape(-1, rows.shape[2]), fmt, out[part].reshape(-1, head_dim))

    run_parallel(unpack, token_slices(tokens, 1024))
    return out


def kv_commit(k_pages: Bytes, v_pages: Bytes, tables: Ints, total: Any, nodes: int, path: Ints, kept: Any) -> None:
    """Move some of the last `nodes` tokens to the front of these, in all layers, in place and without unpacking. With
    ``start = total - nodes``, token ``start + path[i]`` moves to token ``start + i`` for all ``i < kept``. `k_pages`,
    `v_pages`: uint8 (pool_pages, page_tokens, kv_heads, row_bytes); `tables`: int64 (layers, blocks), on the device
    int32, pages of each layer, in order; `total`: int, or on the device int32 (1,), tokens of every layer; `path`:
    int64 (kept or more,), on the device int32, increasing, below `nodes`; `kept`: int, or on the device int32 (1,),
    tokens to move.

    >>> from sp.quant import F32
    >>> pages, table = np.zeros((1, 4, 1, 4), np.uint8), np.array([0])
    >>> kv_append(pages, table, 0, np.arange(4, dtype=np.float32).reshape(4, 1, 1), F32)
    >>> kv_commit(pages, pages.copy(), table[None], 4, 3, np.array([0, 2]), 2)
    >>> kv_gather(pages, table, 3, F32).ravel().tolist()
    [0.0, 1.0, 3.0]
    """
    if is_device(k_pages):
        return _move_on_device(k_pages, v_pages, tables, total, nodes, path, kept)
    page_tokens = k_pages.shape[1]
    source, target = total - nodes + path[:kept], total - nodes + np.arange(kept)
    for table in tables:
        for pages in (k_pages, v_pages):
            moved = pages[table[source // page_tokens], source % page_tokens]
            pages[table[target // page_tokens], target % page_tokens] = moved


def unpacked_pages(pages: Any, table: Any, tokens: int, fmt: BlockFormat) -> Any:
    """Unpack the pages of a sequence on the device, in order: float16 (blocks, 128, kv_heads, head_dim). Slots past the
    last token are zeros."""
    blocks = -(-tokens // PAGE_TOKENS)
    rows = _unpack(pages, table, tokens, fmt, blocks * PAGE_TOKENS)
    return rows.reshape(blocks, PAGE_TOKENS, *rows.shape[1:])


def rows_number(fmt: BlockFormat) -> int:
    """Return the number of a page format in ``page_rows.cuh``; ConfigError if there is none."""
    if fmt not in DEVICE_PAGES:
        known = ", ".join(known.name for known in DEVICE_PAGES)
        raise ConfigError(f"the GPU caches keys and values as one of {known}, not {fmt.name}")
    return DEVICE_PAGES[fmt]


def basis_arrays(basis: KeyBasis | None) -> tuple[Any, Any, Any]:
    """Return the arrays of a basis that packing kernels take."""
    return (None, None, None) if basis is None else (basis.order, basis.offset, basis.inverse)


def page_head_dim(pages: Any, fmt: BlockFormat) -> int:
    """Return the head size of device pages."""
    assert pages.shape[1] == PAGE_TOKENS, f"pages of {pages.shape[1]} tokens; the kernels take {PAGE_TOKENS}"
    return checked_head_dim(pages.shape[3] // fmt.block_bytes * fmt.block_size)


def checked_head_dim(head_dim: int) -> int:
    """Return a head size; ConfigError if the kernels do not support it."""
    if head_dim not in HEAD_DIMS:
        raise ConfigError(f"heads of {head_dim} values: on the GPU they must be one of {HEAD_DIMS}; use device='cpu'")
    return head_dim


def rotated_block(head_dim: int, most: int | None = None) -> int:
    """Return the number of values that are rotated together: the largest power of two that divides the head size, up to
    `most`.

    >>> rotated_block(128), rotated_block(96), rotated_block(128, VALUE_BLOCK)
    (128, 32, 64)
    """
    block = head_dim & -head_dim
    return block if most is None else min(block, most)


def value_block(head_dim: int) -> int:
    """Return the number of values of a value head that are rotated together: at most 64, as in llama.cpp.

    >>> value_block(128), value_block(96)
    (64, 32)
    """
    return rotated_block(head_dim, VALUE_BLOCK)


def split_count(count: Any) -> tuple[Any, int]:
    """Split a token count for a kernel that adds an array (null if there is none) and a number."""
    return (None, int(count)) if isinstance(count, (int, np.integer)) else (count, 0)


def _append_on_device(
    pages: Any,
    table: Any,
    start: Any,
    values: Any,
    fmt: BlockFormat,
    rotate_block: int,
    basis: KeyBasis | None,
    more: int,
) -> None:
    tokens, kv_heads, head_dim = values.shape
    assert pages.shape[2:] == (kv_heads, fmt.row_bytes(head_dim)), f"pages {pages.shape}, values {values.shape}"
    assert rotate_block in (0, 64, head_dim), f"rotation over {rotate_block} of {head_dim}"
    defines = {
        "HEAD_DIM": page_head_dim(pages, fmt),
        "FORMAT": rows_number(fmt),
        "BF16": int(values.dtype == np.uint16),
        "ROTATE": 0 if basis is not None else rotate_block,
    }
    defines |= {"BASIS": 1} if basis is not None and fmt is not K5 else {}
    rows = tokens * kv_heads
    start, offset = split_count(start)
    grid = (-(-rows // ROWS_A_BLOCK),)
    bits = values.view(np.uint16) if values.dtype == np.float16 else values
    turn = basis_arrays(basis)
    KV_APPEND.launch(grid, bits, pages, table, start, offset + more, rows, kv_heads, *turn, defines=defines)


def _move_on_device(k_pages: Any, v_pages: Any, tables: Any, total: Any, nodes: int, path: Any, kept: Any) -> None:
    assert k_pages.shape[:3] == v_pages.shape[:3], f"{k_pages.shape}, {v_pages.shape}"
    assert k_pages.shape[1] == PAGE_TOKENS, f"pages of {k_pages.shape[1]} tokens; the kernels take {PAGE_TOKENS}"
    layers, blocks = tables.shape
    words = [pages.shape[2] * pages.shape[3] // 4 for pages in (k_pages, v_pages)]
    KV_COMMIT.launch(
        (-(-max(words) // MOVE_THREADS), layers, 2),
        k_pages.view(np.uint32),
        v_pages.view(np.uint32),
        tables,
        blocks,
        total,
        -nodes,
        path,
        kept,
        *words,
    )


def _unpack(pages: Any, table: Any, tokens: int, fmt: BlockFormat, rows: int) -> Any:
    head_dim, kv_heads = page_head_dim(pages, fmt), pages.shape[2]
    assert tokens <= len(table) * PAGE_TOKENS, f"{tokens} tokens in {len(table)} pages"
    out = import_cupy().empty((rows, kv_heads, head_dim), np.float16)
    grid = (-(-out.size // 8 // GATHER_THREADS),)
    defines = {"HEAD_DIM": head_dim, "FORMAT": rows_number(fmt)}
    KV_GATHER.launch(grid, pages, table, out, rows, tokens, kv_heads, defines=defines)
    return out


@dataclass(frozen=True)
class PagedKV:
    """Keys and values of one sequence in one layer: pages of a pool, listed in order by a block table. `k`, `v`: uint8
    (pool_pages, page_tokens, kv_heads, row_bytes), on the device pages have 128 tokens. Slots from `tokens` on are not
    read, whatever their content; `rotated`: True if keys are stored rotated by a Hadamard matrix, and values over 64 or
    fewer; `start`, `total`: int32 (1,), optional, on the device: tokens before the last append, and including it.
    Kernels read these arrays, because a CUDA graph freezes numbers.

    >>> from sp.quant import F32
    >>> at = PagedKV(np.zeros((2, 4, 1, 8), np.uint8), np.zeros((2, 4, 1, 8), np.uint8), np.array([1]), 0, F32)
    >>> at.append(np.ones((3, 1, 2), np.float32), np.ones((3, 1, 2), np.float32))
    >>> at.head_dim, replace(at, tokens=3).gather()[0].shape
    (2, (3, 1, 2))
    """

    k: Bytes
    v: Bytes
    table: Ints  # int64 (blocks,), on the device int32 (blocks or more,), pages of the sequence, in order
    tokens: int  # number of stored tokens, counted on the host
    fmt: BlockFormat  # format of a row of keys; on the device one of `DEVICE_PAGES`
    rotated: bool = False
    start: Any = None
    total: Any = None
    value_fmt: BlockFormat | None = None  # format of a row of values, if it differs from that of keys
    basis: KeyBasis | None = None  # basis of rotated keys that are reordered and scaled as well
    recent: RecentRows | None = None  # exact rows of the newest tokens, in place of their packed ones
    before: int = 0  # tokens of the sequence before the first page of the table

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and of values."""
        return int(self.k.shape[2])

    @property
    def head_dim(self) -> int:
        """Values per head."""
        return int(self.k.shape[3]) // self.fmt.block_bytes * self.fmt.block_size

    @property
    def of_values(self) -> BlockFormat:
        """Format of a row of values."""
        return self.value_fmt or self.fmt

    @property
    def exact(self) -> bool:
        """True if keys and values are both stored in 16 bits."""
        return self.fmt is F16 and self.of_values is F16

    @property
    def first(self) -> Any:
        """Offset of the next tokens: a number, or on the device an array."""
        return self.tokens if self.start is None else self.start

    @property
    def count(self) -> Any:
        """Number of stored tokens: a number, or on the device an array."""
        return self.tokens if self.total is None else self.total

    def append(self, k: Floats, v: Floats, more: int = 0) -> None:
        """Store the next tokens (tokens, kv_heads, head_dim) in place, `more` behind the first free slot; see
        `kv_append`."""
        blocks = (rotated_block(self.head_dim), value_block(self.head_dim)) if self.rotated else (0, 0)
        kv_append(self.k, self.table, self.first, k, self.fmt, blocks[0], self.basis, more)
        kv_append(self.v, self.table, self.first, v, self.value_fmt or self.fmt, blocks[1], more=more)
        if self.recent is not None:
            self.recent.append(self, k, v)

    def in_floats(self, k: Any, v: Any, table: Any, **changes: Any) -> PagedKV:
        """Return float16 pages of the same sequence, in the basis of these."""
        return replace(self, k=k, v=v, table=table, fmt=F16, value_fmt=F16, recent=None, **changes)

    def from_block(self, block: int) -> PagedKV:
        """Return the same sequence without its first blocks."""
        skipped = block * self.k.shape[1]
        return replace(self, table=self.table[block:], tokens=self.tokens - skipped, before=self.before + skipped)

    def queries(self, q: Floats) -> Floats:
        """Rotate queries (n, heads, head_dim), float32, on the device float16, to the basis of the stored keys."""
        if self.basis is not None:
            return self.basis.queries(q)
        return hadamard(q, rotated_block(self.head_dim)) if self.rotated else q

    def keys(self) -> Floats:
        """Return keys in the stored basis: (tokens, kv_heads, head_dim); see `kv_gather`."""
        rows = kv_gather(self.k, self.table, self.tokens, self.fmt)
        return rows if self.recent is None else self.recent.over(rows, 0, self.before, self.tokens)

    def model_keys(self) -> Floats:
        """Return keys in the model's basis, within rounding."""
        return self.as_model(self.keys())

    def as_model(self, stored: Floats) -> Floats:
        """Convert rows of keys from the stored basis, as returned by `keys`, to the model's."""
        if self.basis is not None:
            return self.basis.keys(stored)
        return hadamard(stored, rotated_block(self.head_dim)) if self.rotated else stored

    def model_rows(self) -> tuple[Floats, Floats]:
        """Return keys and values in the model's basis, within rounding."""
        keys, values = self.gather()
        return self.as_model(keys), hadamard(values, value_block(self.head_dim)) if self.rotated else values

    def gather(self) -> tuple[Floats, Floats]:
        """Return keys and values in the stored basis."""
        values = kv_gather(self.v, self.table, self.tokens, self.value_fmt or self.fmt)
        if self.recent is not None:
            values = self.recent.over(values, 1, self.before, self.tokens)
        return self.keys(), values

    def unpacked(self) -> PagedKV:
        """Return the same tokens on the device in separate float16 pages, in order; itself if they are float16."""
        if self.exact:
            return self
        run = None if self.recent is None else self.recent.run_of(self.before + self.tokens)
        if run is not None and run.whole is not None:
            table = run.whole.table[self.before // PAGE_TOKENS :]
            return self.in_floats(run.whole.k, run.whole.v, table)
        k, v = (
            unpacked_pages(pages, self.table, self.tokens, fmt)
            for pages, fmt in ((self.k, self.fmt), (self.v, self.of_values))
        )
        if self.recent is not None and run is not None:
            for side, pages in enumerate((k, v)):
                self.recent.over(pages.reshape(-1, *pages.shape[2:]), side, self.before, self.tokens)
        table = import_cupy().arange(len(k), dtype=np.int32)
        return self.in_floats(k.view(np.uint8), v.view(np.uint8), table)

    def check_queries(self, q: Any) -> None:
        """Check pages on the device against queries (n, heads, head_dim)."""
        _, heads, head_dim = q.shape
        for pages, fmt in ((self.k, self.fmt), (self.v, self.of_values)):
            assert page_head_dim(pages, fmt) == head_dim, f"q {q.shape}, pages {pages.shape}"
        assert self.k.shape[:3] == self.v.shape[:3], f"{self.k.shape}, {self.v.shape}"
        assert heads % self.kv_heads == 0, f"{heads} query heads on {self.kv_heads} kv heads"


def rows_formats(at: PagedKV) -> tuple[int, int]:
    """Return the `rows_number` of keys and of values."""
    return rows_number(at.fmt), rows_number(at.of_values)
