"""What formats give blocks of random bytes a spread with: scales that vary from block to block, of known mean square.

Drawing bytes and putting their scales right is what `sp.models.synthetic.random_store` does with `BlockFormat.spread`;
encoding random values would take minutes for a large model."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Doubles

# A quarter up or down, with mean square 1; one entry is drawn for each block.
SPREAD: Doubles = np.linspace(0.75, 1.25, 256)
SPREAD /= np.sqrt(np.mean(SPREAD**2))
SIGN: Doubles = np.where(np.arange(256) % 2, -1.0, 1.0)


def rms(low: int, high: int) -> float:
    """Root mean square of the integers low..high.

    >>> rms(-1, 1) == (2 / 3) ** 0.5
    True
    """
    return float(np.sqrt(np.mean(np.arange(low, high + 1, dtype=np.float64) ** 2)))


def put_scale(field: Bytes, pick: Bytes, d: Doubles | Any) -> None:
    """Store one of the 256 scales `d` as fp16 into each row of `field` (blocks, 2); `pick` (blocks,) says which."""
    field[...] = d.astype("<f2")[pick, None].view(np.uint8)


OUTER_RMS = float(np.sqrt((rms(16, 31) ** 2 + rms(17, 32) ** 2) / 2))
"""Of six-bit scales less 32, -32..-17 and 16..31: those whose upper two bits are equal."""


def equal_bits(field: Bytes) -> None:
    """Make the bits of each pair equal, by the lower one.

    >>> pairs = np.array([0b01_10_11_00], np.uint8)
    >>> equal_bits(pairs)
    >>> f"{pairs[0]:08b}"
    '11001100'
    """
    field &= 0x55
    field |= field << 1
