"""InputTiles: activations in the layout of the Hopper small_m kernel: f16 tiles with means and scales."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy

__all__ = ["UNIT_SCALE", "InputTiles", "empty_tiles", "largest_scales", "size_scales", "tiles_of"]

UNIT_SCALE = 64.0
"""Scale of a token whose values are about 1 in magnitude: it may grow by 2^22, and values down to 2^-8 of it keep 11
bits."""
MOST = 65504.0  # the largest f16


@dataclass(frozen=True)
class InputTiles:
    """Activations (n, width) in the layout of ``input_tiles.cuh``. `squares`: float32 (tokens, width / 16), optional,
    for a deferred RMSNorm: the tiles contain x times its weight, and `squares` the sums of 16 values of x^2. The
    product divides its results by the rms: ``W (x w / rms(x)) = (W (x w)) / rms(x)``."""

    tokens: int  # tokens and width: rows and inputs of a row
    width: int
    held: int  # capacity in tokens, a multiple of 8
    data: Any = field(repr=False, compare=False)  # uint8, flat, tiles, means and the tokens' scales
    squares: Any = field(default=None, repr=False, compare=False)
    eps: float = 0.0  # epsilon of that norm

    def values(self) -> np.ndarray:
        """Return the values in the tiles, float64 (tokens, width): x except for rounding."""
        values: np.ndarray = self._plane(0, self.width) * self.scales()[:, None]
        return values

    def means(self) -> np.ndarray:
        """Return the means of 16 values, float64 (tokens, width / 16)."""
        parts = self._plane(2 * self.width * self.held, _mean_columns(self.width)).reshape(self.tokens, -1, 2, 16)
        means: np.ndarray = parts.sum(axis=2).reshape(self.tokens, -1)[:, : self.width // 16] * self.scales()[:, None]
        return means

    def scales(self) -> np.ndarray:
        """Return the divisors of each token's values, powers of two, float64 (tokens,)."""
        return self._raw(_scales_at(self.width, self.held), 4 * self.tokens).view(np.float32).astype(np.float64)

    def _raw(self, start: int, nbytes: int) -> np.ndarray:
        raw = self.data[start : start + nbytes]
        return raw if isinstance(raw, np.ndarray) else np.asarray(raw.get())

    def _plane(self, start: int, columns: int) -> np.ndarray:
        chunks = self._raw(start, 2 * columns * self.held).view(np.float16).reshape(columns // 64, self.held, 8, 8)
        plain = np.take_along_axis(chunks, _order(self.held), axis=2)
        rows: np.ndarray = plain.transpose(1, 0, 2, 3).reshape(self.held, columns)[: self.tokens]
        return rows.astype(np.float64)


def _mean_columns(width: int) -> int:
    return -(-width // 512) * 64


def _scales_at(width: int, held: int) -> int:
    return 2 * (width + _mean_columns(width)) * held


def _order(held: int) -> np.ndarray:
    """Return the position of each 16-byte chunk of a row in the swizzled layout: (1, held, 8, 1)."""
    return (np.arange(8) ^ (np.arange(held) % 8)[:, None])[None, :, :, None]


def empty_tiles(tokens: int, width: int, held: int) -> InputTiles:
    """Allocate tiles on the current device; `width` is a multiple of 256."""
    return InputTiles(tokens, width, held, import_cupy().empty(_scales_at(width, held) + 4 * held, np.uint8))


def largest_scales(x: Floats) -> Floats:
    """Return scales of tokens whose values are known: the largest is scaled to between 2^14 and 2^15.

    >>> np.log2(largest_scales(np.array([[1e6, 1.0], [1e-3, 0.0]], np.float32)))
    array([  5., -24.], dtype=float32)
    """
    return _power_below(np.abs(x).max(axis=1)) * np.float32(2.0**-14)


def size_scales(mean_squares: Floats) -> Floats:
    """Return scales of tokens of which only the magnitude before an addition is known. `mean_squares`: float32
    (tokens,), of the residual stream.

    >>> size_scales(np.array([1.0, 9.0, 1e6, 0.0], np.float32))
    array([6.4000e+01, 1.2800e+02, 3.2768e+04, 6.2500e-02], dtype=float32)
    """
    return _power_below(np.sqrt(mean_squares + np.float32(1e-6))) * np.float32(UNIT_SCALE)


def _power_below(x: Floats) -> Floats:
    """Return the power of two at or below each positive number, clipped to 2^-100 and 2^100."""
    kept = np.clip(x, np.float32(2.0**-100), np.float32(2.0**100)).astype(np.float32)
    return (kept.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)


def tiles_of(x: Floats, held: int, scales: Floats) -> InputTiles:
    """Build tiles in NumPy, the reference of the kernels. `x`: float32 (tokens, width), width a multiple of 256;
    `scales`: float32 (tokens,).

    >>> x = np.linspace(-1, 1, 256, dtype=np.float32)[None] * 1e6
    >>> tiles = tiles_of(x, 8, largest_scales(x))
    >>> bool(np.abs(tiles.values() - x).max() < 1e6 * 2.0**-11)
    True
    """
    tokens, width = x.shape
    with np.errstate(over="ignore"):
        values = np.clip(x / scales[:, None], -MOST, MOST).astype(np.float16)
    means = values.astype(np.float32).reshape(tokens, width // 16, 16).mean(axis=2)
    high = means.astype(np.float16)
    low = (means - high).astype(np.float16)
    supers = _mean_columns(width) // 32
    parts = np.zeros((tokens, supers, 2, 16), np.float16)
    parts[:, : width // 256, 0], parts[:, : width // 256, 1] = high.reshape(tokens, -1, 16), low.reshape(tokens, -1, 16)
    planes = [_swizzled(plane, held) for plane in (values, parts.reshape(tokens, -1))]
    room = np.zeros(held, np.float32)
    room[:tokens] = scales
    return InputTiles(tokens, width, held, np.concatenate([*planes, room.view(np.uint8)]))


def _swizzled(rows: np.ndarray, held: int) -> np.ndarray:
    """Return the bytes of f16 rows as a plane of tiles."""
    tokens, columns = rows.shape
    room = np.zeros((held, columns), np.float16)
    room[:tokens] = rows
    plain = room.reshape(held, columns // 64, 8, 8).transpose(1, 0, 2, 3)
    return np.take_along_axis(plain, _order(held), axis=2).reshape(-1).view(np.uint8)
