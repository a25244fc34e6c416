"""InputTiles: tokens as the Hopper kernel for few of them multiplies them, f16 in swizzled tiles with means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sp.kernels import import_cupy

__all__ = ["SCALE", "InputTiles", "empty_tiles"]

SCALE = 64
"""Tiles hold x over this, so that values to 4e6 fit."""


@dataclass(frozen=True)
class InputTiles:
    """Tokens (n, width) in the layout of ``input_tiles.cuh``.

    Attributes
    ----------
    tokens, width : int
        Rows and inputs of a row.
    held : int
        Tokens there is room for, a multiple of 8.
    data : uint8, flat
        Tiles and behind them means.
    squares : float32 (tokens, width / 16), optional
        If an RMS norm is not finished: the tiles hold x times its weight, and here are sums of 16 values of x^2. The
        product divides its results by the rms: ``W (x w / rms(x)) = (W (x w)) / rms(x)``.
    eps : float
        Of that norm.
    """

    tokens: int
    width: int
    held: int
    data: Any = field(repr=False, compare=False)
    squares: Any = field(default=None, repr=False, compare=False)
    eps: float = 0.0

    def values(self) -> np.ndarray:
        """What the tiles hold, float64 (tokens, width): x but for its rounding."""
        values: np.ndarray = self._plane(0, self.width) * SCALE
        return values

    def means(self) -> np.ndarray:
        """Means of 16 values, float64 (tokens, width / 16)."""
        columns = -(-self.width // 512) * 64
        parts = self._plane(2 * self.width * self.held, columns).reshape(self.tokens, -1, 2, 16)
        means: np.ndarray = parts.sum(axis=2).reshape(self.tokens, -1)[:, : self.width // 16] * SCALE
        return means

    def _plane(self, start: int, columns: int) -> np.ndarray:
        raw = self.data[start : start + 2 * columns * self.held]
        raw = raw if isinstance(raw, np.ndarray) else raw.get()
        chunks = raw.view(np.float16).reshape(columns // 64, self.held, 8, 8)
        order = np.arange(8) ^ (np.arange(self.held) % 8)[:, None]  # (held, chunk): where it lies
        plain = np.take_along_axis(chunks, order[None, :, :, None], axis=2)
        rows: np.ndarray = plain.transpose(1, 0, 2, 3).reshape(self.held, columns)[: self.tokens]
        return rows.astype(np.float64)


def empty_tiles(tokens: int, width: int, held: int) -> InputTiles:
    """Unfilled tiles on the current device; `width` a multiple of 256."""
    nbytes = (width // 64 + -(-width // 512)) * held * 128
    return InputTiles(tokens, width, held, import_cupy().empty(nbytes, np.uint8))
