"""Cache: pages of keys and values, and recurrent states, of the tokens that a model has read."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.kernels import device_errors, import_cupy
from sp.models.cache.delta_state import DeltaState
from sp.models.cache.device_tables import DeviceTables
from sp.models.cache.kv_type import checked_kv, rotates
from sp.models.config import ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, kv_commit
from sp.ops.attention.recent_rows import RecentRows, new_rings, rings_nbytes
from sp.ops.attention.score_rule import window_reach
from sp.quant import BlockFormat, Math
from sp.quant.cached import IN_BASIS

AT_ONCE = 8192  # most tokens that a layer with a window takes in one append


def ring_pages(window: int | None) -> int:
    """Return the least number of pages for a layer with this window, if tokens come at most AT_ONCE at a time.

    >>> ring_pages(2048) * PAGE_TOKENS, ring_pages(None) > 1 << 30
    (10368, True)
    """
    return 1 << 31 if window is None else -(-(window + AT_ONCE) // PAGE_TOKENS) + 1


@dataclass
class _Pool:
    """Pages of keys and of values that attention layers of one size share, uint8 (pages, 128, kv_heads, row bytes).
    `rows`: rows of its layers in `DeviceTables`, consecutive; `free`: unused pages, of which the last is taken first;
    `peak`: most pages ever in use."""

    k: Any
    v: Any
    rows: slice
    free: list[int] = field(default_factory=list)
    peak: int = 0

    @property
    def used(self) -> int:
        """Number of pages in use."""
        return len(self.k) - len(self.free)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return int(self.k.nbytes + self.v.nbytes)


@dataclass
class _Layer:
    """Pages and fill of one attention layer. `row`: its row in `DeviceTables`."""

    pool: _Pool
    row: int
    table: list[int] = field(default_factory=list)
    tokens: int = 0
    released: bool = False


class Cache:
    """Keys, values and recurrent states of one sequence, for all layers of a model.

    Keys and values are stored in pages of 128 tokens, (128, kv_heads, head_dim) each, taken from a pool that all
    attention layers of one size share. Every layer has a block table that names its pages in order. Pages of a released
    layer serve the next layer.

    Parameters
    ----------
    tokens : int
        Capacity: the maximum number of tokens of the sequence.
    kv : str
        Storage of keys and values, see `KVType`; ``"f32"`` is the reference, on the CPU only.
    rotate : bool, optional
        Rotate keys (and queries) by a Hadamard matrix over the largest power of two that divides head_dim, and values
        over 64 at most, so that outlier channels do not spoil packed pages, as in llama.cpp; by default if `kv` is
        packed.
    layers : int, optional
        Number of attention layers whose pages fit the pool at the same time; all by default. A layer-major prefill that
        keeps nothing needs 1.
    device : {"cpu", "cuda"}
        Device of the model that reads into the cache.
    windows : sequence of int or None, optional
        Number of most recent tokens that each attention layer can be asked for, None for all. Older pages are
        overwritten, and `gather` does not work for such layers.
    precision : Math
        Precision of attention of long runs; see `takes_bytes`.
    bases : mapping of int to KeyBasis, optional
        Basis change of each attention layer's keys before they are packed in a format that uses it (`IN_BASIS`), on the
        device of the cache. Keys of other layers are only rotated.

    Raises
    ------
    ConfigError
        For an unknown `kv`, a head size that it cannot store or rotate, or an invalid capacity.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.ops.rope import Rope
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, Rope(1e6, 64), 1e-6)
    >>> cache = Cache(config, tokens=300, kv="f16")
    >>> cache.append(0, np.ones((5, 1, 64), np.float32), np.ones((5, 1, 64), np.float32))
    >>> cache.length(0), cache.gather(0)[0].shape, cache.pages_in_use
    (5, (5, 1, 64), 1)
    """

    def __init__(
        self,
        config: ModelConfig,
        tokens: int,
        kv: str = "f16",
        *,
        rotate: bool | None = None,
        layers: int | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        windows: Sequence[int | None] | None = None,
        precision: Math = Math.BF16,
        bases: Mapping[int, KeyBasis] | None = None,
    ) -> None:
        if tokens < 1:
            raise ConfigError(f"a cache of {tokens} tokens holds nothing; pass at least 1")
        self._rotated = rotates(kv, rotate)
        self.config, self.capacity, self.precision, self.device = config, int(tokens), precision, device
        attention = config.attention_layers
        if not attention or (layers is not None and layers < 1):
            raise ConfigError(f"layers is {layers}; pass at least 1, for a model with attention layers")
        # Every head size must suit the format; the type itself is the same for all.
        self.kv, *_ = [checked_kv(kv, sizes.head_dim, self._rotated, device) for sizes in config.head_sizes]
        self._bases = key_bases(config, bases or {}, device, self.kv.k) if self.kv.k in IN_BASIS else {}
        self._page_format = {"fmt": self.kv.k, "value_fmt": self.kv.v, "rotated": self._rotated}
        blocks = -(-self.capacity // PAGE_TOKENS)
        ring_sizes = [min(blocks, ring_pages(window)) for window in windows or ()]
        # A layer with a window gets a ring of pages; once all are in use, the oldest are overwritten.
        self._rings = dict(zip(attention, ring_sizes, strict=True)) if ring_sizes else {}
        self.most_at_once = AT_ONCE if ring_sizes else self.capacity  # tokens that a layer takes in one append
        xp = np if device == "cpu" else import_cupy()
        self._pools, placed = list[_Pool](), list[int]()  # layers in the order of their pools
        with device_errors():
            for sizes, layers_of_size in config.head_groups:
                pages = sum(self._rings.get(layer, 0) for layer in layers_of_size)
                # Without rings a pool holds `layers` full layers at a time, at most all of its size.
                pages = pages or min(layers or len(layers_of_size), len(layers_of_size)) * blocks
                shape = pages, PAGE_TOKENS, sizes.kv_heads
                # On the CPU the system commits a page's memory only when it is first written.
                k, v = (xp.empty((*shape, fmt.row_bytes(sizes.head_dim)), np.uint8) for fmt in (self.kv.k, self.kv.v))
                rows = slice(len(placed), len(placed) + len(layers_of_size))
                self._pools.append(_Pool(k, v, rows, list(range(pages))[::-1]))
                placed += layers_of_size
            self._mirror = DeviceTables(len(attention), blocks) if device == "cuda" else None
            # Positions of all tokens, where layers have windows: int64 (capacity,).
            self.places: Ints = xp.zeros(self.capacity if any(config.windows) else 0, np.int64)
            self._states = {i: DeltaState.new(config.delta, device) for i in config.delta_layers if config.delta}
        where = [(pool, row) for pool in self._pools for row in range(pool.rows.start, pool.rows.stop)]
        by_pool = {layer: _Layer(*place) for layer, place in zip(placed, where, strict=True)}
        self._layers = {layer: by_pool[layer] for layer in attention}
        # Exact rows of the newest tokens, by layer: none for other formats.
        self.recent = self._new_rings(blocks) if self.kv.keeps_recent else {}
        self._counted: dict[int, _Layer | DeltaState] = {**self._layers, **self._states}
        self._together = False

    def reset(self) -> None:
        """Free all pages and zero all states."""
        for pool in self._pools:
            pool.free = list(range(len(pool.k)))[::-1]
        for layer in self._layers.values():
            layer.table, layer.tokens, layer.released = [], 0, False
        if self._mirror is not None:
            self._mirror.counts.fill(0)
        for state in self._states.values():
            state.clear()
        for recent in self.recent.values():
            recent.forget()

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        """Store the keys and values of the next tokens of an attention layer. `k`, `v`, float32 (tokens, kv_heads,
        head_dim): after RoPE. PromptError past the capacity, after `release`, or if the pool has no free page."""
        self.add(layer, len(k)).append(k, v)

    def add(self, layer: int, tokens: int) -> PagedKV:
        """Reserve room for the next tokens of a layer after those that it stores, count them, and return where they go.
        Errors as for `append`."""
        state = self._layers[layer]
        assert layer not in self._rings or tokens <= AT_ONCE, f"{tokens} tokens at once, {AT_ONCE} at most"
        if state.released:
            raise PromptError(f"layer {layer} of this cache was released; call reset() before reading more tokens")
        self._grow(layer, state.tokens + tokens)
        # Within `together` the device counts of all layers have advanced already.
        if self._mirror is not None and not self._together:
            self._mirror.advance(tokens, state.row)
        pages = self.stored(layer)
        state.tokens += tokens
        return pages

    def stored(self, layer: int) -> PagedKV:
        """Return where the keys and values of a layer are stored, for ops that read pages."""
        state, mirror = self._layers[layer], self._mirror
        options: dict[str, Any] = {"basis": self._bases.get(layer), "recent": self.recent.get(layer)}
        options |= self._page_format
        if mirror is None:
            return PagedKV(state.pool.k, state.pool.v, np.array(state.table, np.int64), state.tokens, **options)
        options |= {"start": mirror.counts[state.row, :1], "total": mirror.counts[state.row, 1:]}
        return PagedKV(state.pool.k, state.pool.v, mirror.tables[state.row], state.tokens, **options)

    def reach(self, layer: int, positions: Ints, window: int, *, tree: bool = False) -> Ints:
        """Return the first token of a layer that each of its last tokens sees within a window; `positions` are theirs,
        where the model is. See `window_reach`."""
        return window_reach(positions, self.places, self.stored(layer).count, window, tree=tree)

    @contextmanager
    def together(self, tokens: int) -> Iterator[None]:
        """Within the context every layer reads the same next `tokens`: counts on the device advance once, not layer by
        layer."""
        if self._mirror is not None:
            self._mirror.advance(tokens)
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def reserve(self, tokens: int) -> None:
        """Allocate the pages for `tokens` more tokens now, so that reading them allocates none."""
        total = self.tokens + tokens
        for layer in self._layers:
            self._grow(layer, total)

    def count(self, tokens: int, layers: Container[int] | None = None) -> None:
        """Count `tokens` more tokens (fewer if negative) in every layer or in `layers`, on the host only. Used when a
        CUDA graph has read them and updated the device counts itself, or when tokens that were read tentatively are
        dropped."""
        for layer, state in self._counted.items():
            state.tokens += tokens if layers is None or layer in layers else 0
        for layer, recent in self.recent.items():
            if recent.count(self._layers[layer].tokens) and not self._layers[layer].released:
                recent.refill(self.stored(layer))

    def advance(self, tokens: int, more: Any = None, layer: int | None = None) -> None:
        """Count `tokens` more tokens (fewer if negative) in every layer or in one, on the device only; no effect on the
        CPU. `more`, int32 (1,) on the device, is added to them. A `layer` without pages has no device count."""
        if self._mirror is not None and (layer is None or layer in self._layers):
            self._mirror.advance(tokens, None if layer is None else self._layers[layer].row, more)

    def crop(self, tokens: int, *, refill: bool = True) -> None:
        """Truncate to the first `tokens` tokens on host and device, even if layers are half read; pages after them are
        overwritten later, and recurrent states stay as they are. Without `refill` the caller provides the exact rows of
        the newest tokens, see `RecentRows`."""
        stale = [layer for layer in self.recent if refill and self._layers[layer].tokens != tokens]
        for state in self._counted.values():
            state.tokens = tokens
        if self._mirror is not None:
            self._mirror.counts.fill(tokens)
        for layer in stale:
            self.recent[layer].refill(self.stored(layer))

    def move(self, nodes: int, path: Ints, count: Ints) -> None:
        """Move those of the last `nodes` tokens that a path names to the front, in all attention layers; counts stay.
        `path`, int64 (count or more,), on the device int32: increasing, below `nodes`. `count`: nodes of the path,
        int64 (1,), on the device int32."""
        for pool in self._pools:
            rings = [recent for layer, recent in self.recent.items() if self._layers[layer].pool is pool]
            total: Any
            kept: Any
            if self._mirror is not None:
                tables, total, kept = self._mirror.tables[pool.rows], self._mirror.counts[0, 1:], count
            else:
                layers = [layer for layer in self._layers.values() if layer.pool is pool]
                tables = np.array([layer.table for layer in layers], np.int64)
                total, kept = layers[0].tokens, int(count[0])
            kv_commit(pool.k, pool.v, tables, total, nodes, path, kept)
            if rings:
                kv_commit(rings[0].k, rings[0].v, rings[0].tables, total, nodes, path, kept)

    def gather(self, layer: int) -> tuple[Floats, Floats]:
        """Return the keys and values of a layer as stored (rotated, if the cache rotates): two arrays (tokens,
        kv_heads, head_dim)."""
        return self.stored(layer).gather()

    def keys(self, layer: int) -> Floats:
        """Return the keys of a layer as they were appended, within rounding: (tokens, kv_heads, head_dim)."""
        return self.stored(layer).model_keys()

    def state(self, layer: int) -> DeltaState:
        """Return the recurrent state of a Gated DeltaNet layer; assign its fields to advance it."""
        return self._states[layer]

    def release(self, layer: int) -> None:
        """Return the pages of a layer to the pool; it accepts no tokens until `reset`. No effect for other layers."""
        if layer not in self._layers:
            return
        state = self._layers[layer]
        # A ring's table names pages repeatedly, and each is returned once; reversed, so that they are taken in order.
        state.pool.free += reversed(dict.fromkeys(state.table))
        assert len(state.pool.free) <= len(state.pool.k), "a page was returned twice"
        state.table, state.tokens, state.released = [], 0, True
        if layer in self.recent:
            self.recent[layer].forget()
        if self._mirror is not None:
            self._mirror.counts[state.row].fill(0)

    def length(self, layer: int) -> int:
        """Return the number of tokens a layer has read: stored in its pages, or folded into its recurrent state."""
        return self._counted[layer].tokens

    def block_table(self, layer: int) -> tuple[int, ...]:
        """Return the pages of an attention layer, in token order."""
        return tuple(self._layers[layer].table)

    @property
    def tokens(self) -> int:
        """Number of tokens that all layers have read; PromptError if the layers differ, as after a release."""
        lengths = {state.tokens for state in self._counted.values()}
        if len(lengths) > 1 or any(layer.released for layer in self._layers.values()):
            raise PromptError("layers of this cache hold different tokens (released or half read); reset() it first")
        return lengths.pop()

    @property
    def pages_in_use(self) -> int:
        """Number of pages that layers use now."""
        return sum(pool.used for pool in self._pools)

    @property
    def peak_pages(self) -> int:
        """Most pages of every size ever used at the same time."""
        return sum(pool.peak for pool in self._pools)

    @property
    def state_nbytes(self) -> int:
        """Bytes of recurrent and convolution states."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def nbytes(self) -> int:
        """Bytes allocated: all pools of pages and all states."""
        return sum(pool.nbytes for pool in self._pools) + self.ring_nbytes + self.state_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes ever written to: pages in use at the peak and all states."""
        peaks = (pool.peak * (pool.nbytes // len(pool.k)) for pool in self._pools)
        return sum(peaks) + self.ring_nbytes + self.state_nbytes

    def end_run(self) -> None:
        """Forget the exact rows of the last long run, whose memory is freed or used again."""
        for recent in self.recent.values():
            recent.end()

    @property
    def ring_nbytes(self) -> int:
        """Bytes of the exact rows of the newest tokens, see `RecentRows`."""
        return rings_nbytes(self.recent)

    def _new_rings(self, blocks: int) -> dict[int, RecentRows]:
        """Allocate rings for the newest tokens of all layers."""
        sizes = [(layers, sizes.kv_heads, sizes.head_dim) for sizes, layers in self.config.head_groups]
        return new_rings(sizes, blocks, self.device)

    def _grow(self, layer: int, total: int) -> None:
        """Allocate the pages that a layer needs for `total` tokens; the page that was freed last is taken first."""
        if total > self.capacity:
            raise PromptError(
                f"{total} tokens do not fit a cache of {self.capacity}; make the cache larger or the prompt shorter"
            )
        state, needed = self._layers[layer], -(-total // PAGE_TOKENS)
        table = state.table
        used = len(table)
        if needed <= used:
            return
        # A ring allocates no more than its own pages; after that its pages are reused below.
        count = max(0, min(needed, self._rings.get(layer, needed)) - used)
        pool = state.pool
        if count > len(pool.free):
            raise PromptError(
                f"the KV cache needs {count} more pages, and {len(pool.free)} of {len(pool.k)} are free; "
                "make it larger, or release layers as they finish"
            )
        table += [pool.free.pop() for _ in range(count)]
        pool.peak = max(pool.peak, len(pool.k) - len(pool.free))
        while len(table) < needed:
            # the ring is full: the new block reuses the page of the oldest one
            table.append(table[-self._rings[layer]])
        if self._mirror is not None:
            self._mirror.grow(state.row, used, table[used:])


def key_bases(config: ModelConfig, known: Mapping[int, KeyBasis], device: str, fmt: BlockFormat) -> dict[int, KeyBasis]:
    """Return the bases of all attention layers for keys of a format: the known ones, and plain ones for the others."""
    bases = {}
    for layer in config.attention_layers:
        sizes = config.heads_of(layer)
        basis = known[layer].of_format(fmt) if layer in known else KeyBasis.plain(sizes.kv_heads, sizes.head_dim)
        bases[layer] = basis.on_device() if device == "cuda" else basis
    return bases
