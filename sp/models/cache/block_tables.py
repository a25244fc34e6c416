"""BlockTables: which pages the attention layers of a sequence hold, and how many tokens lie in them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sp.arrays import Ints
from sp.errors import PromptError
from sp.models.cache.device_tables import DeviceTables
from sp.models.cache.pages import PagePool
from sp.ops.attention.kv_pages import PAGE_TOKENS
from sp.ops.attention.paged_kv import PagedKV

AT_ONCE = 8192
"""Most tokens that a layer with a window takes in one append."""


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
    layers : sequence of int
    capacity : int
        Most tokens of a layer.
    pool : PagePool
    rings : mapping of int to int
        Most pages of the layers that write theirs again once they have so many.
    device : {"cpu", "cuda"}
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
