"""Helpers that decoders share: nibbles, look-up tables for codes, scales of groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sp.arrays import Bytes, Floats, Int8s


def split_nibbles(packed: Bytes, codes: Bytes) -> None:
    """Split bytes (..., n) into codes (..., 2 n): low nibbles fill the first half, high nibbles the second.

    >>> codes = np.empty(4, np.uint8)
    >>> split_nibbles(np.array([0x21, 0x43], np.uint8), codes)
    >>> codes.tolist()
    [1, 3, 2, 4]
    """
    half = packed.shape[-1]
    np.bitwise_and(packed, 15, out=codes[..., :half])
    np.right_shift(packed, 4, out=codes[..., half:])


def nibble_tables(values: Sequence[int]) -> tuple[Int8s, Int8s]:
    """Return the values of the low and of the high nibble of each of the 256 bytes, each int8 (256,).

    >>> low, high = nibble_tables(range(0, 80, 5))
    >>> int(low[0x21]), int(high[0x21])
    (5, 10)
    """
    table = np.array(values, np.int8)
    codes = np.arange(256)
    return table[codes & 15], table[codes >> 4]


def scale_groups(codes: Int8s | Bytes, scales: Floats, out: Floats) -> None:
    """Write ``scale * code``: `codes` and `out` (blocks, values), `scales` (blocks, groups)."""
    np.copyto(out, codes)
    groups = out.reshape(*scales.shape, -1)
    groups *= scales[:, :, None]
