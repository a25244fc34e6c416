"""Cache: what a model remembers of the tokens it has read: pages of keys and values, and recurrent states."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.kernels import device_errors
from sp.models.cache.block_tables import BlockTables, PagePool, page_format, ring_pages, rotates
from sp.models.cache.delta_state import DeltaState
from sp.models.config import ModelConfig
from sp.ops import hadamard
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.quant import Math


class Cache:
    """Keys, values and recurrent states of one sequence, for all layers of a model.

    Keys and values lie in pages of 128 tokens taken from one pool; each attention layer has a block table that
    names its pages in order. Pages of a released layer serve the next one.

    Parameters
    ----------
    tokens : int
        Capacity: most tokens the sequence may reach.
    kv : {"f32", "f16", "q4_0"}
        Storage of keys and values; ``"f32"`` is the reference and for the CPU alone.
    rotate : bool, optional
        Rotate keys (and queries) by a Hadamard matrix over the largest power of two that divides head_dim, and values
        over 64 at most, so that 4-bit pages lose no outlier channels, as in llama.cpp; by default if `kv` is quantised.
    layers : int, optional
        Attention layers whose pages fit the pool at once; all by default. To keep nothing, layer by layer, needs 1.
    device : {"cpu", "cuda"}
        Where the model is that reads into it.
    windows : sequence of int or None, optional
        How many of its last tokens each attention layer is ever asked for, None for all. Pages further back are
        written again, and `gather` is not for such layers.
    math : Math
        What attention of long runs is made in; see `takes_bytes`.

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
        math: Math = Math.BF16,
    ) -> None:
        if tokens < 1:
            raise ConfigError(f"a cache of {tokens} tokens holds nothing; ask for at least 1")
        rotate = rotates(kv, rotate)
        fmt = page_format(kv, config.head_dim, rotate, device)
        self.config, self.capacity, self.kv, self.math = config, int(tokens), kv, math
        attention = config.attention_layers
        resident = len(attention) if layers is None else min(layers, len(attention))
        if resident < 1:
            raise ConfigError(f"layers is {layers}; ask for at least 1")
        blocks, self.device = -(-self.capacity // PAGE_TOKENS), device
        wanted = [min(blocks, ring_pages(window)) for window in windows or ()]
        rings = dict(zip(attention, wanted, strict=True)) if wanted else {}
        pages = sum(wanted) if wanted else resident * blocks
        with device_errors():
            self._pool = PagePool(pages, PAGE_TOKENS, config.kv_heads, config.head_dim, fmt, rotate, device)
            self._tables = BlockTables(attention, self.capacity, self._pool, rings, device)
            self._states = {i: DeltaState.new(config.delta, device) for i in config.delta_layers if config.delta}

    def reset(self) -> None:
        """Free all pages, zero all states."""
        self._tables.clear()
        for state in self._states.values():
            state.clear()

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        """Store the keys and values of the next tokens of an attention layer. `k`, `v`, float32 (tokens, kv_heads,
        head_dim): rotated by position already (RoPE). PromptError past the capacity, after `release`, or when the pool
        has no free page."""
        self.add(layer, len(k)).append(k, v)

    def add(self, layer: int, tokens: int) -> PagedKV:
        """Where the next tokens of a layer go, which are counted; PromptError as `append`."""
        return self._tables.add(layer, tokens)

    def together(self, tokens: int) -> AbstractContextManager[None]:
        """Inside, every layer reads the same next `tokens`: counts on the device move at once, not layer by layer."""
        return self._tables.together(tokens)

    def reserve(self, tokens: int) -> None:
        """Take the pages that `tokens` more tokens need now, so that reading them takes none."""
        self._tables.reserve(self.tokens + tokens)

    def count(self, tokens: int, layers: Container[int] | None = None) -> None:
        """Count `tokens` more (if negative, fewer) in every layer or in `layers`, on the host alone. A CUDA graph has
        read them, and counted for itself; or they were read for a try and are not kept."""
        self._tables.count(tokens, layers)
        for layer, state in self._states.items():
            state.tokens += tokens if layers is None or layer in layers else 0

    def advance(self, tokens: int, more: Any = None, layer: int | None = None) -> None:
        """Count `tokens` more (if negative, fewer) in every layer or in one, on the device alone; nothing on the CPU.
        `more`, int32 (1,) on the device, is added to them. A `layer` without pages counts nothing there."""
        if layer is None or layer in self._tables:
            self._tables.advance(tokens, more, layer)

    def crop(self, tokens: int) -> None:
        """Hold the first `tokens` tokens alone, host and device, even of layers half read; states stay as they are."""
        self._tables.crop(tokens)
        for state in self._states.values():
            state.tokens = tokens

    def move(self, nodes: int, path: Ints, kept: Ints) -> None:
        """Put those of the last `nodes` tokens that a path names first, in all attention layers; counts stay. `path`,
        int64 (kept or more,), on the device int32: increasing, below `nodes`. `kept`: int64 (1,), on the device
        int32."""
        self._pool.move(*self._tables.whole(), nodes, path, int(kept[0]) if self.device == "cpu" else kept)

    def gather(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values of a layer as stored (rotated, if the cache rotates): two (tokens, kv_heads, head_dim)."""
        return self.stored(layer).gather()

    def keys(self, layer: int) -> Floats:
        """Keys of a layer as they were appended, within rounding: (tokens, kv_heads, head_dim)."""
        at = self.stored(layer)
        return hadamard(at.keys(), at.key_block) if at.rotated else at.keys()

    def stored(self, layer: int) -> PagedKV:
        """Where keys and values of a layer lie, for ops that read pages."""
        return self._tables.view(layer)

    def state(self, layer: int) -> DeltaState:
        """The recurrent state of a Gated DeltaNet layer; assign its fields to move it on."""
        return self._states[layer]

    def release(self, layer: int) -> None:
        """Give the pages of a layer back to the pool; it takes no more tokens until `reset`. No effect elsewhere."""
        if layer in self._tables:
            self._tables.release(layer)

    def length(self, layer: int) -> int:
        """Tokens a layer has read: stored in its pages, or folded into its recurrent state."""
        return self._tables.tokens(layer) if layer in self._tables else self._states[layer].tokens

    def block_table(self, layer: int) -> tuple[int, ...]:
        """Pages of an attention layer, in token order."""
        return self._tables.table(layer)

    @property
    def tokens(self) -> int:
        """Tokens all layers have read; PromptError when they differ, as they do after a release."""
        lengths = self._tables.lengths() | {state.tokens for state in self._states.values()}
        if len(lengths) > 1 or self._tables.released:
            raise PromptError("layers of this cache hold different tokens (released or half read); reset() it first")
        return lengths.pop()

    @property
    def pages_in_use(self) -> int:
        """Pages that layers hold now."""
        return self._pool.in_use

    @property
    def peak_pages(self) -> int:
        """Most pages ever held at once."""
        return self._pool.peak

    @property
    def state_nbytes(self) -> int:
        """Bytes of recurrent and convolution states."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def nbytes(self) -> int:
        """Bytes reserved: the whole page pool and all states."""
        return self._pool.nbytes + self.state_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes ever written to: pages held at the peak and all states."""
        return self._pool.peak * self._pool.page_nbytes + self.state_nbytes
