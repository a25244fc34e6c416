"""Walk: the residual stream of a prompt through one layer, its projections chunk by chunk, its attention at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block, Tap
from sp.models.model import Model
from sp.models.passes.forward import Pace, slices
from sp.models.passes.layer_attention import LayerAttention

Watch = Callable[[int, Floats, Cache], None]
"""Sees every attention layer before it attends: (layer, q (rows, heads, d) of the last rows, cache with its keys)."""


@dataclass(frozen=True)
class Walk:
    """What all layers of one reading share."""

    model: Model
    positions: Ints
    cache: Cache
    attend: LayerAttention
    chunk: int
    pace: Pace
    tap: Tap | None = None
    watch: Watch | None = None

    def layer(self, index: int, x: Floats, rows: int, *, finish: bool = True) -> Floats:
        """The stream (n, hidden) through a layer, in place; only its last `rows` come out.

        Without `finish` an attention layer stops once its keys, its values and the last queries are known and seen.
        """
        rows = min(rows, len(x))
        if isinstance(self.model.trunk.blocks[index].mixer, Attention):
            return self._attention(index, x, rows, finish)
        if finish:
            for part, wanted in slices(len(x), self.chunk, rows):
                done = self.model.layer(index, x[part], self.positions[part], self.cache, rows=wanted)
                if not is_device(done):  # on the device it is there already
                    x[part.stop - wanted : part.stop] = done
                self.pace.done(part.stop - part.start)
        else:
            self.pace.done(len(x))
        return x[len(x) - rows :]

    def _attention(self, index: int, x: Floats, rows: int, finish: bool) -> Floats:
        q, gate = self.enter(index, x, rows, tell=not finish)
        if self.watch is not None:
            self.watch(index, q, self.cache)
        if not finish:
            return x[len(x) - rows :]
        attended = self.attend(self.cache, index, q, gate)
        del q, gate  # as large as the prompt: gone before the feed-forward needs room
        first = len(x) - rows
        self.leave(index, x[first:], attended)
        self.pace.done(first)
        return x[first:]

    def enter(
        self, index: int, x: Floats, rows: int, tell: bool, into: Floats | None = None
    ) -> tuple[Floats, Floats | None]:
        """All that comes before attention, chunk by chunk: queries, `into` there, and gates of the last `rows`."""
        block, mixer = self._attending(index)
        c, norm = self.model.config, (block.attn_norm, block.eps)
        on_device = is_device(x)
        xp = import_cupy() if on_device else np
        kind = np.float16 if on_device else np.float32
        q: Floats = xp.empty((rows, c.heads, c.head_dim), kind) if into is None else into
        shape = rows, c.heads, 2 * c.head_dim
        gates: Floats | None = xp.empty(shape, np.uint16 if on_device else np.float32) if c.gated else None
        at = 0
        for part, wanted in slices(len(x), self.chunk, rows):
            to = _cut(q, slice(at, at + wanted))
            some, places = _cut(x, part), _cut(self.positions, part)
            got, gate = mixer.enter(some, norm, places, self.cache, wanted, self.tap, to)
            if got is not to and wanted:
                to[...] = got
            if gates is not None and wanted:
                gates[at : at + wanted] = gate
            at += wanted
            if tell:
                self.pace.done(part.stop - part.start)
        return q, gates

    def leave(self, index: int, x: Floats, attended: Floats) -> None:
        """All that comes after attention, chunk by chunk: the stream (n, hidden) is moved on in place."""
        block, mixer = self._attending(index)
        for part, _ in slices(len(x), self.chunk, len(x)):
            done = block.feed_forward(block.joined(mixer.leave(_cut(x, part), _cut(attended, part))))
            if not is_device(done):
                x[part] = done
            self.pace.done(part.stop - part.start)

    def _attending(self, index: int) -> tuple[Block, Attention]:
        """A layer with attention, and that."""
        block = self.model.trunk.blocks[index]
        assert isinstance(block.mixer, Attention)
        return block, block.mixer


def _cut(values: Any, part: slice) -> Any:
    """``values[part]``; all of them as they are, for to cut an array takes the host a good part of a launch."""
    return values if part == slice(0, len(values)) else values[part]
