"""Cache: what a model remembers of the tokens it has read: pages of keys and values, and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError, PromptError, unknown_name
from sp.models.config import ModelConfig
from sp.models.pages import PagePool
from sp.ops import hadamard
from sp.quant import F16, F32, Q4_0, BlockFormat

KV_FORMATS: dict[str, BlockFormat] = {"f32": F32, "f16": F16, "q4_0": Q4_0}
PAGE_TOKENS = 128
VALUE_BLOCK = 64  # llama.cpp rotates values in blocks of 64, whatever the head size


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
    """

    conv: Floats
    recurrent: Floats
    tokens: int = 0


@dataclass
class _Layer:
    """Pages and fill of one attention layer."""

    table: list[int] = field(default_factory=list)
    tokens: int = 0
    released: bool = False


class Cache:
    """Keys, values and recurrent states of one sequence, for all layers of a model.

    Keys and values lie in pages of 128 tokens taken from one pool; each attention layer has a block table that
    names its pages in order. Pages of a released layer serve the next one.

    Parameters
    ----------
    config : ModelConfig
    tokens : int
        Capacity: most tokens the sequence may reach.
    kv : {"f32", "f16", "q4_0"}
        Storage of keys and values. ``"f32"`` is the reference.
    rotate : bool
        Rotate keys (and queries) by a Hadamard matrix over the largest power of two that divides head_dim, and
        values over blocks of 64, so that 4-bit pages do not lose outlier channels; outputs are rotated back.
        The result is the same up to rounding. This is what llama.cpp does for quantised caches.
    layers : int, optional
        Attention layers whose pages fit the pool at once; all of them by default. 1 is enough for a layer by
        layer prefill that keeps nothing.

    Raises
    ------
    ConfigError
        For an unknown `kv`, a head size it cannot store or rotate, or a senseless capacity.

    Examples
    --------
    >>> config = ModelConfig("qwen3", 8, 9, 512, (8,), ("attention",), 1, 1, 64, 64, 1e6, 1e-6)
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
        rotate: bool = False,
        layers: int | None = None,
    ) -> None:
        if kv not in KV_FORMATS:
            raise unknown_name("KV format", kv, KV_FORMATS)
        if tokens < 1:
            raise ConfigError(f"a cache of {tokens} tokens holds nothing; ask for at least 1")
        fmt = KV_FORMATS[kv]
        if config.head_dim % fmt.block_size:
            raise ConfigError(
                f"KV format {kv} packs {fmt.block_size} values a block, which does not divide the head size "
                f"{config.head_dim}; use f16 or f32"
            )
        if rotate and config.head_dim % VALUE_BLOCK:
            raise ConfigError(f"rotation needs a head size that is a multiple of {VALUE_BLOCK}, not {config.head_dim}")
        self.config = config
        self.capacity = int(tokens)
        self.kv = kv
        self.rotate = rotate
        self.key_block = config.head_dim & -config.head_dim
        attention = config.attention_layers
        resident = len(attention) if layers is None else min(layers, len(attention))
        if resident < 1:
            raise ConfigError(f"layers is {layers}; ask for at least 1")
        pages = resident * -(-self.capacity // PAGE_TOKENS)
        self._pool = PagePool(pages, PAGE_TOKENS, config.kv_heads, config.head_dim, fmt)
        self._layers: dict[int, _Layer] = {}
        self._states: dict[int, DeltaState] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything: free all pages, zero all states."""
        self._pool.free_all()
        self._layers = {i: _Layer() for i in self.config.attention_layers}
        delta = self.config.delta
        if delta is not None:
            for i in self.config.delta_layers:
                self._states[i] = DeltaState(
                    np.zeros((delta.conv_kernel - 1, delta.conv_dim), np.float32),
                    np.zeros((delta.value_heads, delta.head_dim, delta.head_dim), np.float32),
                )

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        """Store the keys and values of the next tokens of an attention layer.

        Parameters
        ----------
        layer : int
        k, v : float32 (tokens, kv_heads, head_dim)
            Rotated by position already (RoPE).

        Raises
        ------
        PromptError
            Past the capacity, after `release`, or when the pool has no free page.
        """
        state = self._layers[layer]
        total = state.tokens + len(k)
        if state.released:
            raise PromptError(f"layer {layer} of this cache was released; reset() the cache before reading on")
        if total > self.capacity:
            raise PromptError(
                f"{total} tokens do not fit a cache of {self.capacity}; make the cache larger or the prompt shorter"
            )
        needed = -(-total // PAGE_TOKENS) - len(state.table)
        state.table += self._pool.take(needed)
        if self.rotate:
            k, v = hadamard(k, self.key_block), hadamard(v, VALUE_BLOCK)
        self._pool.write(state.table, state.tokens, k, v)
        state.tokens = total

    def gather(self, layer: int) -> tuple[Floats, Floats]:
        """Keys and values of a layer as stored (rotated, if the cache rotates): two (tokens, kv_heads, head_dim)."""
        state = self._layers[layer]
        return self._pool.read(state.table, state.tokens)

    def keys(self, layer: int) -> Floats:
        """Keys of a layer as they were appended, within rounding: (tokens, kv_heads, head_dim)."""
        k, _ = self.gather(layer)
        return hadamard(k, self.key_block) if self.rotate else k

    def attend(self, layer: int, q: Floats) -> Floats:
        """Attention of the last tokens of a layer, q (n, heads, head_dim), over all it holds, with them.

        Returns (n, heads, head_dim): rotated as the values are, if the cache rotates; see `gate_output`.
        """
        state = self._layers[layer]
        return self._pool.attend(q, state.table, state.tokens, self.key_block if self.rotate else 0)

    def rotate_queries(self, q: Floats) -> Floats:
        """Queries to meet the keys of `gather`; unchanged unless the cache rotates."""
        return hadamard(q, self.key_block) if self.rotate else q

    def restore_outputs(self, out: Floats) -> Floats:
        """Undo the rotation that values bring into attention outputs; unchanged unless the cache rotates."""
        return hadamard(out, VALUE_BLOCK) if self.rotate else out

    def state(self, layer: int) -> DeltaState:
        """The recurrent state of a Gated DeltaNet layer; assign its fields to move it on."""
        return self._states[layer]

    def release(self, layer: int) -> None:
        """Give the pages of a layer back to the pool; it takes no more tokens until `reset`. No effect elsewhere."""
        if layer in self._layers:
            state = self._layers[layer]
            self._pool.give_back(state.table)
            self._layers[layer] = _Layer(released=True)

    def length(self, layer: int) -> int:
        """Tokens a layer has read: stored in its pages, or folded into its recurrent state."""
        return self._layers[layer].tokens if layer in self._layers else self._states[layer].tokens

    def block_table(self, layer: int) -> tuple[int, ...]:
        """Pages of an attention layer, in token order."""
        return tuple(self._layers[layer].table)

    @property
    def tokens(self) -> int:
        """Tokens all layers have read; PromptError when they differ, as they do after a release."""
        lengths = {self.length(i) for i in range(self.config.layers)}
        if len(lengths) > 1 or any(layer.released for layer in self._layers.values()):
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
        return sum(s.conv.nbytes + s.recurrent.nbytes for s in self._states.values())

    @property
    def nbytes(self) -> int:
        """Bytes reserved: the whole page pool and all states."""
        return self._pool.nbytes + self.state_nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes ever written to: pages held at the peak and all states."""
        return self._pool.peak * self._pool.page_nbytes + self.state_nbytes
