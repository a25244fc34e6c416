"""KeyBasis: the order, scale and rotation in which the channels of a layer's keys are cached, and that of queries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.attention_rows import ROWS_A_BLOCK, TURN_KEYS
from sp.ops.hadamard import sylvester
from sp.quant import BlockFormat
from sp.quant.cached import K5

PART = 32  # values that matter most, followed by as many that matter less, in every 64 of a cached row
LEAST = 0.02
"""Least weight of a channel, relative to the root mean square of all: its inverse must stay finite."""


SETTLING = 8
"""Most times a row is packed until it no longer changes; two are nearly always enough."""


@dataclass(frozen=True)
class KeyBasis:
    """The basis of a layer's keys in the cache: ``stored = H ((k[order] - offset) / scale)``.

    A query becomes ``H (q[order] * scale)``, so that all its products are unchanged, minus ``q · offset``, which is
    equal for all keys and does not affect softmax, if there are neither sinks nor bounds of scores. Code that compares
    scores of several queries adds it back: see `shift`. `order` puts the channels that matter most into the first 32 of
    each 64 places, the others into the second 32; H rotates each of both kinds by itself, over all its places (see
    `turned`).

    Attributes
    ----------
    order : int32 (kv_heads, d)
        Channel at each place.
    offset, scale : float32 (kv_heads, d)
        Offset and scale of each place.
    first : float32 (kv_heads, d), optional
        The key that a format is to store without error, in the model's order; see `of_format`.
    """

    order: Ints
    offset: Floats
    scale: Floats
    first: Floats | None = None
    _of_format: dict[str, KeyBasis] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def plain(cls, kv_heads: int, head_dim: int) -> KeyBasis:
        """Return the basis of keys without measurements, which only rotates.

        >>> KeyBasis.plain(1, 64).order[0, :4].tolist()
        [0, 1, 2, 3]
        """
        shape = kv_heads, head_dim
        order = np.broadcast_to(np.arange(head_dim, dtype=np.int32), shape)
        return cls(np.ascontiguousarray(order), np.zeros(shape, np.float32), np.ones(shape, np.float32))

    @classmethod
    def measured(cls, mean: Doubles, keys: Doubles, queries: Doubles) -> KeyBasis:
        """Build a basis from root mean squares (kv_heads, d) of `keys` minus their `mean`, and of `queries`. A
        channel's weight is the product of both, and its scale balances the errors of the two.

        >>> heavy = KeyBasis.measured(np.zeros((1, 64)), np.arange(64.0)[None], np.ones((1, 64))).order[0, :32]
        >>> int(heavy.min())
        32
        """
        mean, keys, queries = (np.asarray(one, np.float64) for one in (mean, keys, queries))
        keys, queries = (np.maximum(one, LEAST * np.sqrt((one**2).mean(1, keepdims=True))) for one in (keys, queries))
        keys, queries = (np.where(one > 0, one, 1.0) for one in (keys, queries))
        order = np.argsort(-(keys * queries), axis=1, kind="stable").astype(np.int32)
        kv_heads, d = order.shape
        order = order.reshape(kv_heads, 2, d // (2 * PART), PART).swapaxes(1, 2).reshape(kv_heads, d)
        offset, scale = (np.take_along_axis(one, order, 1) for one in (mean, np.sqrt(keys / queries)))
        return cls(np.ascontiguousarray(order), offset.astype(np.float32), scale.astype(np.float32))

    def around(self, key: Floats, fmt: BlockFormat = K5) -> KeyBasis:
        """Return the same basis, with the offset moved by the error of packing a key (kv_heads, d), which is then
        packed without error in that format.

        Most queries attend most to the first token of a text, whose key is far from others and close to those of other
        texts' first tokens: an error there would affect nearly all scores.

        >>> key = np.linspace(-9, 40, 64, dtype=np.float32)[None]
        >>> basis = KeyBasis.plain(1, 64).around(key)
        >>> rows = basis.stored(key[None])
        >>> bool(np.abs(K5.decode(K5.encode(rows)) - rows).max() < 1e-4)
        True
        """
        placed = np.take_along_axis(key.astype(np.float32), self.order, 1)
        rows = turned((placed - self.offset) * self.inverse)
        for _ in range(SETTLING):
            packed = fmt.decode(fmt.encode(rows)).reshape(rows.shape)
            if np.array_equal(packed, rows):
                break
            rows = packed
        return replace(self, offset=placed - turned(rows) * self.scale)

    def of_format(self, fmt: BlockFormat) -> KeyBasis:
        """Return the basis for rows of a format, which stores `first` without error; computed once for each."""
        if self.first is None:
            return self
        found = self._of_format.get(fmt.name)
        # threads of several GPUs may ask at the same time, and all get the one that is stored first
        return found or self._of_format.setdefault(fmt.name, replace(self.around(self.first, fmt), first=None))

    @cached_property
    def inverse(self) -> Floats:
        """One over `scale`."""
        found: Floats = np.float32(1) / self.scale
        return found

    @cached_property
    def shift(self) -> Floats:
        """The vector by which packed rows differ from keys with their offset: float32 (kv_heads, d), equal in all
        rows."""
        return turned(self.offset * self.inverse)

    def on_device(self) -> KeyBasis:
        """Return the same basis on the current device, with all arrays created now: arrays first created in a CUDA
        graph would be in its workspace."""
        cupy = import_cupy()
        made = replace(self, **{name: cupy.asarray(getattr(self, name)) for name in ("order", "offset", "scale")})
        made.__dict__.update(inverse=cupy.asarray(self.inverse), shift=cupy.asarray(self.shift))
        return made

    def stored(self, keys: Floats) -> Floats:
        """Convert keys (tokens, kv_heads, d), float32, to the basis in which they are packed."""
        placed = np.take_along_axis(keys, self.order[None], axis=2)
        return turned((placed - self.offset) * self.inverse)

    def keys(self, stored: Floats) -> Floats:
        """Convert unpacked rows to keys in the model's order: float32 (tokens, kv_heads, d), on the device float16."""
        if is_device(stored):
            return self._launch(stored, keys=True)
        placed, out = turned(stored) * self.scale + self.offset, np.empty_like(stored)
        np.put_along_axis(out, np.broadcast_to(self.order, out.shape), placed, axis=2)
        return out

    def queries(self, q: Floats) -> Floats:
        """Convert queries (n, heads, d), float32, on the device float16, to the basis of packed keys."""
        if is_device(q):
            return self._launch(q, keys=False)
        n, heads, d = q.shape
        grouped = q.reshape(n, len(self.order), -1, d)
        placed = np.take_along_axis(grouped, self.order[None, :, None], axis=3) * self.scale[:, None].astype(q.dtype)
        return turned(placed).reshape(n, heads, d)

    def _launch(self, rows: Any, *, keys: bool) -> Floats:
        n, heads, d = rows.shape
        out: Floats = import_cupy().empty(rows.shape, np.float16)
        group = heads // len(self.order)
        TURN_KEYS.launch(
            (-(-n * heads // ROWS_A_BLOCK),), rows, self.order, self.offset, self.scale, out, n * heads, heads, group,
            defines={"HEAD_DIM": d, "TO_KEYS": int(keys)},
        )  # fmt: skip
        return out


def turned(x: Floats) -> Floats:
    """Rotate the first 32 of every 64 values of a row (..., d) together, and the second ones together, by a Hadamard
    matrix over the largest power of two that divides their count. Its own inverse.

    >>> (turned(np.eye(1, 64))[0, 31:33] * 32**0.5).round(4).tolist()
    [1.0, 0.0]
    """
    blocks = x.shape[-1] // (2 * PART)
    together = blocks & -blocks
    split = x.reshape(-1, blocks // together, together, 2, PART)
    inner = split @ sylvester(PART).astype(x.dtype, copy=False)
    outer = np.einsum("abcde,cf->abfde", inner, sylvester(together).astype(x.dtype, copy=False), optimize=True)
    out: Floats = np.ascontiguousarray(outer).reshape(x.shape)
    return out
