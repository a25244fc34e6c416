"""Helpers that fit the scales in blocks of random bytes: scales that vary from block to block, with known mean square.

`sp.models.synthetic.random_store` draws random bytes and fixes their scales with `BlockFormat.fit_scales`; encoding
random values would take minutes for a large model."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Doubles

# A quarter up or down, with mean square 1; one entry is drawn for each block.
FACTORS: Doubles = np.linspace(0.75, 1.25, 256)
FACTORS /= np.sqrt(np.mean(FACTORS**2))
SIGN: Doubles = np.where(np.arange(256) % 2, -1.0, 1.0)


def rms(low: int, high: int) -> float:
    """Return the root mean square of the integers low..high.

    >>> rms(-1, 1) == (2 / 3) ** 0.5
    True
    """
    return float(np.sqrt(np.mean(np.arange(low, high + 1, dtype=np.float64) ** 2)))


def put_scale(field: Bytes, pick: Bytes, d: Doubles | Any) -> None:
    """Store one of the 256 scales `d` as fp16 in each row of `field` (blocks, 2), at the index `pick` (blocks,)."""
    field[...] = d.astype("<f2")[pick, None].view(np.uint8)


OUTER_RMS = float(np.sqrt((rms(16, 31) ** 2 + rms(17, 32) ** 2) / 2))
"""Root mean square of six-bit scales minus 32 whose upper two bits are equal: -32..-17 and 16..31."""


def equal_bits(field: Bytes) -> None:
    """Make the bits of each pair equal to the lower one.

    >>> pairs = np.array([0b01_10_11_00], np.uint8)
    >>> equal_bits(pairs)
    >>> f"{pairs[0]:08b}"
    '11001100'
    """
    field &= 0x55
    field |= field << 1
