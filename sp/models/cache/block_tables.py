"""BlockTables: which pages the attention layers of a sequence hold, and how many tokens lie in them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from sp.arrays import Ints
from sp.errors import ConfigError, PromptError, unknown_name
from sp.kernels import import_cupy
from sp.kernels.specs.sequence import ADVANCE_COUNTS
from sp.ops.attention.kv_pages import DEVICE_PAGES, PAGE_TOKENS, PagedKV, kv_commit, rotated_block
from sp.quant import BlockFormat, format_by_name

KVType = Literal["f32", "f16", "q4_0"]
KV_FORMATS: dict[str, BlockFormat] = {name: format_by_name(name) for name in get_args(KVType)}
QUANTISED_KV = tuple(name for name, fmt in KV_FORMATS.items() if fmt.block_size > 1)
DEVICE_KV_FORMATS = tuple(name for name, fmt in KV_FORMATS.items() if fmt in DEVICE_PAGES)


class PagePool:
    """Storage for keys and values in `pages` pages of (page_tokens, kv_heads, head_dim) each. `fmt` packs each head's
    row of a token; `rotated`: see `PagedKV`.

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
    What a format quantises it packs in blocks whose size is a power of two, so that all its heads can be rotated."""
    return kv in QUANTISED_KV if rotate is None else rotate


def cache_name(kv: str, rotate: bool | None) -> str:
    """A cache as records name it.

    >>> cache_name("q4_0", None), cache_name("f16", None)
    ('q4_0 rotated', 'f16')
    """
    return f"{kv} rotated" if rotates(kv, rotate) else kv


class DeviceTables:
    """Mirrors, on the device, of what `Cache` counts on the host. `layers`: attention layers; a row each. `blocks`:
    most pages of a layer. `tables`: cupy int32 (layers, blocks). `counts`, cupy int32 (layers, 2): tokens before the
    last append, and with it. Only kernels change them, so a CUDA graph can."""

    def __init__(self, layers: int, blocks: int) -> None:
        cupy = import_cupy()
        self.tables = cupy.zeros((layers, blocks), np.int32)
        self.counts = cupy.zeros((layers, 2), np.int32)

    def grow(self, row: int, first: int, pages: list[int]) -> None:
        """Write the pages of a layer from block `first` on; not while a graph is captured."""
        if pages:
            part = self.tables[row, first : first + len(pages)]
            part.set(np.array(pages, np.int32), import_cupy().cuda.get_current_stream())

    def advance(self, tokens: int, row: int | None = None, more: Any = None) -> None:
        """Count `tokens` more, and what int32 (1,) `more` holds on the device, in one layer or in all."""
        counts = self.counts if row is None else self.counts[row : row + 1]
        ADVANCE_COUNTS.launch((-(-len(counts) // 64),), counts, len(counts), tokens, more)

    def set(self, tokens: int) -> None:
        """Count `tokens` in every layer."""
        self.counts.fill(tokens)

    def start(self, row: int) -> Any:
        """Tokens of a layer before the last append: a view of one number."""
        return self.counts[row, :1]

    def total(self, row: int) -> Any:
        """Tokens of a layer."""
        return self.counts[row, 1:]

    def clear(self, row: int | None = None) -> None:
        """Count from 0 again, in one layer or in all."""
        counts = self.counts if row is None else self.counts[row]
        counts.fill(0)


AT_ONCE = 8192  # most tokens that a layer with a window takes in one append


@dataclass
class _Layer:
    """Pages and fill of one attention layer."""

    table: list[int] = field(default_factory=list)
    tokens: int = 0
    released: bool = False


class BlockTables:
    """Page tables and token counts of attention layers that share a pool, on the host and, if need be, the device.

    Parameters
    ----------
    capacity : int
        Most tokens of a layer.
    rings : mapping of int to int
        Most pages of the layers that write theirs again once they have so many.
    """

    def __init__(
        self,
        layers: Sequence[int],
        capacity: int,
        pool: PagePool,
        rings: Mapping[int, int],
        device: Literal["cpu", "cuda"],
    ) -> None:
        self._capacity, self._pool, self._rings = capacity, pool, rings
        blocks = -(-capacity // PAGE_TOKENS)
        self._device = DeviceTables(len(layers), blocks) if device == "cuda" else None
        self._rows = {layer: row for row, layer in enumerate(layers)}
        self._layers: dict[int, _Layer] = {}
        self._together = False
        self.clear()

    def __contains__(self, layer: int) -> bool:
        return layer in self._layers

    def clear(self) -> None:
        """Give all pages back and count from 0."""
        self._pool.free_all()
        self._layers = {layer: _Layer() for layer in self._rows}
        if self._device is not None:
            self._device.clear()

    def add(self, layer: int, tokens: int) -> PagedKV:
        """Make room for the next tokens of a layer and count them; what it holds before them, and room behind."""
        state = self._layers[layer]
        total = state.tokens + tokens
        assert layer not in self._rings or tokens <= AT_ONCE, f"{tokens} tokens at once, {AT_ONCE} at most"
        if state.released:
            raise PromptError(f"layer {layer} of this cache was released; reset() the cache before reading on")
        self._grow(layer, total)
        if self._device is not None and not self._together:
            self._device.advance(tokens, self._rows[layer])
        at = self.view(layer)
        state.tokens = total
        return at

    def view(self, layer: int) -> PagedKV:
        """Where the tokens of a layer lie."""
        state, tables = self._layers[layer], self._device
        if tables is None:
            return self._pool.view(np.array(state.table, np.int64), state.tokens)
        row = self._rows[layer]
        return self._pool.view(tables.tables[row], state.tokens, tables.start(row), tables.total(row))

    def whole(self) -> tuple[Ints, Any]:
        """Tables of all layers, which hold as many tokens, and their number: where the pool is."""
        if self._device is not None:
            return self._device.tables, self._device.total(0)
        layers = list(self._layers.values())
        return np.array([layer.table for layer in layers], np.int64), layers[0].tokens if layers else 0

    @contextmanager
    def together(self, tokens: int) -> Iterator[None]:
        """See `Cache.together`."""
        self.advance(tokens)
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def reserve(self, total: int) -> None:
        """Take the pages that every layer needs for `total` tokens."""
        for layer in self._layers:
            self._grow(layer, total)

    def count(self, tokens: int, layers: Container[int] | None = None) -> None:
        """Count `tokens` more in every layer or in `layers`, on the host alone."""
        for layer, state in self._layers.items():
            state.tokens += tokens if layers is None or layer in layers else 0

    def crop(self, tokens: int) -> None:
        """Count `tokens` in every layer, on host and device; the pages behind them are written over."""
        for layer in self._layers.values():
            layer.tokens = tokens
        if self._device is not None:
            self._device.set(tokens)

    def advance(self, tokens: int, more: Any = None, layer: int | None = None) -> None:
        """Count `tokens`, and what `more` holds, more in every layer or in one, on the device alone."""
        if self._device is not None:
            self._device.advance(tokens, None if layer is None else self._rows[layer], more)

    def release(self, layer: int) -> None:
        """Give the pages of a layer back; it takes no more tokens until `clear`."""
        self._pool.give_back(list(dict.fromkeys(self._layers[layer].table)))
        self._layers[layer] = _Layer(released=True)
        if self._device is not None:
            self._device.clear(self._rows[layer])

    def tokens(self, layer: int) -> int:
        """Tokens of a layer, as the host counts them."""
        return self._layers[layer].tokens

    def table(self, layer: int) -> tuple[int, ...]:
        """Pages of a layer, in token order."""
        return tuple(self._layers[layer].table)

    def lengths(self) -> set[int]:
        """Numbers of tokens that layers hold."""
        return {layer.tokens for layer in self._layers.values()}

    @property
    def released(self) -> bool:
        """Whether any layer is."""
        return any(layer.released for layer in self._layers.values())

    def _grow(self, layer: int, total: int) -> None:
        """Take the pages a layer needs for `total` tokens."""
        if total > self._capacity:
            raise PromptError(
                f"{total} tokens do not fit a cache of {self._capacity}; make the cache larger or the prompt shorter"
            )
        state = self._layers[layer]
        held, wanted = len(state.table), -(-total // PAGE_TOKENS)
        if wanted <= held:
            return
        state.table += self._pool.take(max(0, min(wanted, self._rings.get(layer, wanted)) - held))
        while len(state.table) < wanted:
            state.table.append(state.table[-self._rings[layer]])
        if self._device is not None:
            self._device.grow(self._rows[layer], held, state.table[held:])


def ring_pages(window: int | None) -> int:
    """Pages that a layer cannot do without whose tokens see `window` back and come at most AT_ONCE at a time.

    >>> ring_pages(2048) * PAGE_TOKENS, ring_pages(None) > 1 << 30
    (10368, True)
    """
    return 1 << 31 if window is None else -(-(window + AT_ONCE) // PAGE_TOKENS) + 1
