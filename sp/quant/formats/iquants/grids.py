"""Grids and signs of the I-quants: a code selects a vector of four or eight small numbers, and bits give their signs.

The grids are the tables of the `gguf` package, unpacked on first use. Each vector is stored as one machine word, so
that selecting it is one load."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

from sp.arrays import Bytes, Int8s


@cache
def grid(name: str) -> npt.NDArray[Any]:
    """Return the vectors of a format's grid as words: uint64 (vectors,) of eight int8 or uint32 (vectors,) of four.

    >>> grid("IQ3_S").dtype.name, grid("IQ3_S").shape, grid("IQ3_S").view(np.int8).reshape(-1, 4)[1].tolist()
    ('uint32', (512,), [3, 1, 1, 1])
    """
    table = getattr(quants, name)
    table.init_grid()
    vectors = table.grid.reshape(table.grid_shape).astype(np.int8)
    return np.ascontiguousarray(vectors).view(f"<u{table.grid_shape[1]}")[:, 0]


@cache
def grid_rms(name: str) -> float:
    """Return the root mean square of all numbers of a grid.

    >>> round(grid_rms("IQ3_S"), 2)
    7.59
    """
    return float(np.sqrt(np.mean(np.square(grid(name).view(np.int8), dtype=np.float64))))


_SIGN_BITS = np.array([0, 7, 14, 21], np.uint32)


def _signs() -> npt.NDArray[np.uint64]:
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).view("<u8")[:, 0]


SIGNS = _signs()  # eight factors 1 or -1 as a word for each byte of sign bits, the lowest bit first
SIGNS_OF_7 = SIGNS[[code | (code.bit_count() & 1) << 7 for code in range(128)]]
"""The same for 7-bit codes: the eighth bit makes the number of set bits even."""


HALVES_RMS = float(np.sqrt(np.mean(np.square(np.arange(8, 16) + 0.5))))
"""Root mean square of the half-integer scales 8.5 to 15.5, which random blocks have."""


def word_signs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Unpack four 7-bit sign codes from each word, the lowest first: (blocks, n) -> (blocks, n, 4)."""
    return SIGNS_OF_7.take(words[:, :, None] >> _SIGN_BITS & 127)


def signed_vectors(vectors: npt.NDArray[Any], signs: npt.NDArray[np.uint64]) -> Int8s:
    """Multiply `vectors`, in place, by `signs`: words, 256 bytes of them per block -> int8 (blocks, 256)."""
    codes = vectors.view(np.int8).reshape(-1, 256)
    codes *= signs.view(np.int8).reshape(-1, 256)
    return codes


def nibbles_in_turn(packed: Bytes) -> Bytes:
    """Unpack the low and high nibble of each byte in turn: (blocks, n) -> (blocks, 2 n).

    >>> nibbles_in_turn(np.array([[0x21, 0x43]], np.uint8)).tolist()
    [[1, 2, 3, 4]]
    """
    out = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0])
    np.right_shift(packed, 4, out=out[..., 1])
    return out.reshape(len(packed), -1)
