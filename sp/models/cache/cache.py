"""Cache: what a model remembers of the tokens it has read: pages of keys and values, and recurrent states."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.kernels import device_errors, import_cupy
from sp.models.cache.device_tables import DeviceTables
from sp.models.cache.kv_type import checked_kv, rotates
from sp.models.config import DeltaConfig, ModelConfig
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, kv_commit
from sp.ops.attention.score_rule import window_reach
from sp.quant import Math
from sp.quant.cached import K5


@dataclass
class DeltaState:
    """Memory of one Gated DeltaNet layer: float32 whatever the format of the pages.

    Attributes
    ----------
    conv : float32 (conv_kernel - 1, conv_dim)
        The last inputs of the convolution, oldest first.
    recurrent : float32 (value_heads, head_dim, head_dim)
        The state S, key axis before value axis.
    tokens : int
        Tokens read so far.
    real : int32 (1,), optional
        How many of the tokens that pass it takes, see `padded`; all of them by default.
    """

    conv: Floats
    recurrent: Floats
    tokens: int = 0
    real: Ints | None = None

    @classmethod
    def new(cls, sizes: DeltaConfig, device: Literal["cpu", "cuda"]) -> DeltaState:
        """The state before the first token."""
        zeros = np.zeros if device == "cpu" else import_cupy().zeros
        return cls(
            zeros((sizes.conv_kernel - 1, sizes.conv_dim), np.float32),
            zeros((sizes.value_heads, sizes.head_dim, sizes.head_dim), np.float32),
        )

    def clear(self) -> None:
        """Forget every token, in the same arrays."""
        self.conv.fill(0)
        self.recurrent.fill(0)
        self.tokens = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.conv.nbytes + self.recurrent.nbytes)


@contextmanager
def padded(states: Sequence[DeltaState], real: Ints) -> Iterator[None]:
    """Inside, states take only the first ``real[0]`` of the tokens that pass: at least as many as `conv` holds. `real`,
    int32 (1,), lies where the states are, so that a CUDA graph reads it anew whenever it runs."""
    for state in states:
        state.real = real
    try:
        yield
    finally:
        for state in states:
            state.real = None


AT_ONCE = 8192  # most tokens that a layer with a window takes in one append


def ring_pages(window: int | None) -> int:
    """Pages that a layer cannot do without whose tokens see `window` back and come at most AT_ONCE at a time.

    >>> ring_pages(2048) * PAGE_TOKENS, ring_pages(None) > 1 << 30
    (10368, True)
    """
    return 1 << 31 if window is None else -(-(window + AT_ONCE) // PAGE_TOKENS) + 1


@dataclass
class _Pool:
    """Pages of keys and of values that attention layers of one size share, uint8 (pages, 128, kv_heads, bytes of a
    row). `rows`: of its layers in `DeviceTables`, one after the other; `free`: pages that nobody holds, of which the
    last one is taken first; `peak`: most pages ever held at once."""

    k: Any
    v: Any
    rows: slice
    free: list[int] = field(default_factory=list)
    peak: int = 0

    @property
    def used(self) -> int:
        """Pages that are held."""
        return len(self.k) - len(self.free)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return int(self.k.nbytes + self.v.nbytes)


@dataclass
class _Layer:
    """Pages and fill of one attention layer. `row`: of it in `DeviceTables`."""

    pool: _Pool
    row: int
    table: list[int] = field(default_factory=list)
    tokens: int = 0
    released: bool = False


class Cache:
    """Keys, values and recurrent states of one sequence, for all layers of a model.

    Keys and values lie in pages of 128 tokens, (128, kv_heads, head_dim) each, taken from a pool that all attention
    layers of one size share; every one has a block table that names its pages in order. Pages of a released layer serve
    the next one.

    Parameters
    ----------
    tokens : int
        Capacity: most tokens the sequence may reach.
    kv : str
        Storage of keys and values, see `KVType`; ``"f32"`` is the reference and for the CPU alone.
    rotate : bool, optional
        Rotate keys (and queries) by a Hadamard matrix over the largest power of two that divides head_dim, and values
        over 64 at most, so that packed pages lose no outlier channels, as in llama.cpp; by default if `kv` is packed.
    layers : int, optional
        Attention layers whose pages fit their pool at once; all by default. To keep nothing, layer by layer, needs 1.
    device : {"cpu", "cuda"}
        Where the model is that reads into it.
    windows : sequence of int or None, optional
        How many of its last tokens each attention layer is ever asked for, None for all. Pages further back are
        written again, and `gather` is not for such layers.
    precision : Math
        What attention of long runs is made in; see `takes_bytes`.
    bases : mapping of int to KeyBasis, optional
        How each attention layer's keys are turned before they are packed in a format that asks for it (`K5`), where the
        cache is; those that are left out are rotated alone.

    Raises
    ------
    ConfigError
        For an unknown `kv`, a head size it cannot store or rotate, or a senseless capacity.

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
            raise ConfigError(f"a cache of {tokens} tokens holds nothing; ask for at least 1")
        self._rotated = rotates(kv, rotate)
        self.config, self.capacity, self.precision, self.device = config, int(tokens), precision, device
        attention = config.attention_layers
        if not attention or (layers is not None and layers < 1):
            raise ConfigError(f"layers is {layers}; ask for at least 1")
        self.kv, *_ = [checked_kv(kv, sizes.head_dim, self._rotated, device) for sizes in config.head_sizes]
        self._bases = key_bases(config, bases or {}, device) if self.kv.k is K5 else {}
        self._how = {"fmt": self.kv.k, "value_fmt": self.kv.v, "rotated": self._rotated}  # all layers' keys and values
        blocks = -(-self.capacity // PAGE_TOKENS)
        wanted = [min(blocks, ring_pages(window)) for window in windows or ()]
        self._rings = dict(zip(attention, wanted, strict=True)) if wanted else {}  # most pages, then written again
        self.most_at_once = AT_ONCE if wanted else self.capacity  # tokens that a layer takes in one append
        xp = np if device == "cpu" else import_cupy()
        self._pools, placed = list[_Pool](), list[int]()  # layers in the order of their pools
        with device_errors():
            for sizes, alike in config.head_groups:
                pages = sum(self._rings.get(layer, 0) for layer in alike)
                pages = pages or min(layers or len(alike), len(alike)) * blocks
                shape = pages, PAGE_TOKENS, sizes.kv_heads
                # On the CPU the system commits a page's memory only when it is first written.
                k, v = (xp.empty((*shape, fmt.row_bytes(sizes.head_dim)), np.uint8) for fmt in (self.kv.k, self.kv.v))
                rows = slice(len(placed), len(placed) + len(alike))
                self._pools.append(_Pool(k, v, rows, list(range(pages))[::-1]))
                placed += alike
            self._mirror = DeviceTables(len(attention), blocks) if device == "cuda" else None
            # Positions of all tokens, where layers have windows: int64 (capacity,).
            self.places: Ints = xp.zeros(self.capacity if any(config.windows) else 0, np.int64)
            self._states = {i: DeltaState.new(config.delta, device) for i in config.delta_layers if config.delta}
        where = [(pool, row) for pool in self._pools for row in range(pool.rows.start, pool.rows.stop)]
        found = {layer: _Layer(*place) for layer, place in zip(placed, where, strict=True)}
        self._layers = {layer: found[layer] for layer in attention}
        self._held: dict[int, _Layer | DeltaState] = {**self._layers, **self._states}
        self._together = False

    def reset(self) -> None:
        """Free all pages, zero all states."""
        for pool in self._pools:
            pool.free = list(range(len(pool.k)))[::-1]
        for layer in self._layers.values():
            layer.table, layer.tokens, layer.released = [], 0, False
        if self._mirror is not None:
            self._mirror.counts.fill(0)
        for state in self._states.values():
            state.clear()

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        """Store the keys and values of the next tokens of an attention layer. `k`, `v`, float32 (tokens, kv_heads,
        head_dim): rotated by position already (RoPE). PromptError past the capacity, after `release`, or when the pool
        has no free page."""
        self.add(layer, len(k)).append(k, v)

    def add(self, layer: int, tokens: int) -> PagedKV:
        """Where the next tokens of a layer go, behind those that it holds; they are counted; errors as `append`."""
        state = self._layers[layer]
        assert layer not in self._rings or tokens <= AT_ONCE, f"{tokens} tokens at once, {AT_ONCE} at most"
        if state.released:
            raise PromptError(f"layer {layer} of this cache was released; reset() the cache before reading on")
        self._grow(layer, state.tokens + tokens)
        if self._mirror is not None and not self._together:
            self._mirror.advance(tokens, state.row)
        at = self.stored(layer)
        state.tokens += tokens
        return at

    def stored(self, layer: int) -> PagedKV:
        """Where keys and values of a layer lie, for ops that read pages."""
        state, mirror = self._layers[layer], self._mirror
        how: dict[str, Any] = {**self._how, "basis": self._bases.get(layer)}
        if mirror is None:
            return PagedKV(state.pool.k, state.pool.v, np.array(state.table, np.int64), state.tokens, **how)
        how |= {"start": mirror.counts[state.row, :1], "total": mirror.counts[state.row, 1:]}
        return PagedKV(state.pool.k, state.pool.v, mirror.tables[state.row], state.tokens, **how)

    def reach(self, layer: int, positions: Ints, window: int, *, tree: bool = False) -> Ints:
        """The first token of a layer that each of its last ones sees within a window; `positions` are theirs, where the
        model is. See `window_reach`."""
        return window_reach(positions, self.places, self.stored(layer).count, window, tree=tree)

    @contextmanager
    def together(self, tokens: int) -> Iterator[None]:
        """Inside, every layer reads the same next `tokens`: counts on the device move at once, not layer by layer."""
        if self._mirror is not None:
            self._mirror.advance(tokens)
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def reserve(self, tokens: int) -> None:
        """Take the pages that `tokens` more tokens need now, so that reading them takes none."""
        total = self.tokens + tokens
        for layer in self._layers:
            self._grow(layer, total)

    def count(self, tokens: int, layers: Container[int] | None = None) -> None:
        """Count `tokens` more (if negative, fewer) in every layer or in `layers`, on the host alone. A CUDA graph has
        read them, and counted for itself; or they were read for a try and are not kept."""
        for layer, held in self._held.items():
            held.tokens += tokens if layers is None or layer in layers else 0

    def advance(self, tokens: int, more: Any = None, layer: int | None = None) -> None:
        """Count `tokens` more (if negative, fewer) in every layer or in one, on the device alone; nothing on the CPU.
        `more`, int32 (1,) on the device, is added to them. A `layer` without pages counts nothing there."""
        if self._mirror is not None and (layer is None or layer in self._layers):
            self._mirror.advance(tokens, None if layer is None else self._layers[layer].row, more)

    def crop(self, tokens: int) -> None:
        """Hold the first `tokens` tokens alone, host and device, even of layers half read; pages behind them are
        written over, and states stay as they are."""
        for held in self._held.values():
            held.tokens = tokens
        if self._mirror is not None:
            self._mirror.counts.fill(tokens)

    def move(self, nodes: int, path: Ints, kept: Ints) -> None:
        """Put those of the last `nodes` tokens that a path names first, in all attention layers; counts stay. `path`,
        int64 (kept or more,), on the device int32: increasing, below `nodes`. `kept`: int64 (1,), on the device
        int32."""
        for pool in self._pools:
            if self._mirror is not None:
                tables = self._mirror.tables[pool.rows]
                kv_commit(pool.k, pool.v, tables, self._mirror.counts[0, 1:], nodes, path, kept)
            else:
                layers = [layer for layer in self._layers.values() if layer.pool is pool]
                tables = np.array([layer.table for layer in layers], np.int64)
                kv_commit(pool.k, pool.v, tables, layers[0].tokens, nodes, path, int(kept[0]))

    def gather(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values of a layer as stored (rotated, if the cache rotates): two (tokens, kv_heads, head_dim)."""
        return self.stored(layer).gather()

    def keys(self, layer: int) -> Floats:
        """Keys of a layer as they were appended, within rounding: (tokens, kv_heads, head_dim)."""
        return self.stored(layer).model_keys()

    def state(self, layer: int) -> DeltaState:
        """The recurrent state of a Gated DeltaNet layer; assign its fields to move it on."""
        return self._states[layer]

    def release(self, layer: int) -> None:
        """Give the pages of a layer back to the pool; it takes no more tokens until `reset`. No effect elsewhere."""
        if layer not in self._layers:
            return
        state = self._layers[layer]
        state.pool.free += reversed(dict.fromkeys(state.table))
        assert len(state.pool.free) <= len(state.pool.k), "a page was returned twice"
        state.table, state.tokens, state.released = [], 0, True
        if self._mirror is not None:
            self._mirror.counts[state.row].fill(0)

    def length(self, layer: int) -> int:
        """Tokens a layer has read: stored in its pages, or folded into its recurrent state."""
        return self._held[layer].tokens

    def block_table(self, layer: int) -> tuple[int, ...]:
        """Pages of an attention layer, in token order."""
        return tuple(self._layers[layer].table)

    @property
    def tokens(self) -> int:
        """Tokens all layers have read; PromptError when they differ, as they do after a release."""
        lengths = {held.tokens for held in self._held.values()}
        if len(lengths) > 1 or any(layer.released for layer in self._layers.values()):
            raise PromptError("layers of this cache hold different tokens (released or half read); reset() it first")
        return lengths.pop()

    @property
    def pages_in_use(self) -> int:
        """Pages that layers hold now."""
        return sum(pool.used for pool in self._pools)

    @property
    def peak_pages(self) -> int:
        """Most pages of every size ever held at once."""
        return sum(pool.peak for pool in self._pools)

    @property
    def state_nbytes(self) -> int:
        """Bytes of recurrent and convolution states."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def nbytes(self) -> int:
        """Bytes reserved: all pools of pages and all states."""
        return sum(pool.nbytes for pool in self._pools) + self.state_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes ever written to: pages held at the peak and all states."""
        held = (pool.peak * (pool.nbytes // len(pool.k)) for pool in self._pools)
        return sum(held) + self.state_nbytes

    def _grow(self, layer: int, total: int) -> None:
        """Take the pages a layer needs for `total` tokens, those returned last first."""
        if total > self.capacity:
            raise PromptError(
                f"{total} tokens do not fit a cache of {self.capacity}; make the cache larger or the prompt shorter"
            )
        state, wanted = self._layers[layer], -(-total // PAGE_TOKENS)
        table = state.table
        held = len(table)
        if wanted <= held:
            return
        count = max(0, min(wanted, self._rings.get(layer, wanted)) - held)
        pool = state.pool
        if count > len(pool.free):
            raise PromptError(
                f"the KV cache needs {count} more pages and has {len(pool.free)} of {len(pool.k)} free; "
                "make it larger, or release layers as they finish"
            )
        table += [pool.free.pop() for _ in range(count)]
        pool.peak = max(pool.peak, len(pool.k) - len(pool.free))
        while len(table) < wanted:
            table.append(table[-self._rings[layer]])
        if self._mirror is not None:
            self._mirror.grow(state.row, held, table[held:])


def key_bases(config: ModelConfig, known: Mapping[int, KeyBasis], device: str) -> dict[int, KeyBasis]:
    """Bases of all attention layers, where they are wanted: known ones, or plain ones."""
    found = {}
    for layer in config.attention_layers:
        sizes = config.heads_of(layer)
        basis = known.get(layer) or KeyBasis.plain(sizes.kv_heads, sizes.head_dim)
        found[layer] = basis.on_device() if device == "cuda" else basis
    return found
