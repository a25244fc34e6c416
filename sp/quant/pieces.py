"""Pieces: the positions of the bits of three- to six-bit codes in the words that a thread loads of a tile.

A thread loads 32 codes of a tile, four in each of eight places (four steps, two rows), and a word has a byte for each
of the four. So one layout serves all four bytes: a place has its bits there in one piece, or in up to three where a
byte has no room left. A code in one piece is an operand as soon as the rest of its word is masked off, at whichever bit
it starts: products of bytes yield it times a power of two. For this reason codes of five and six bits are not split
into four bits and the rest: at half of the places, and at three quarters, nothing has to be combined.

The NumPy packing (`sp.ops.matmul.fragment_order`) and, through ``packings.cuh``, all kernels use this table."""

from __future__ import annotations

from typing import NamedTuple

STEPS, ROWS, MOST_PIECES = 4, 2, 3
PIECED = (3, 4, 5, 6)  # bits of the codes that are stored in pieces


class BitField(NamedTuple):
    """A piece of a code: `bits` bits, from bit `to` of the code on, stored at bit `at` of the bytes of a word."""

    word: int
    at: int
    bits: int
    to: int


def pieces(bits: int, step: int, row: int) -> tuple[BitField, ...]:
    """Return the pieces of the codes of a place, the upper bits first.

    Parameters
    ----------
    bits : {3, 4, 5, 6}, bits of a code, and the number of words
    step : int, 0 to 3, the step of 16 inputs
    row : {0, 1}, the rows ``g`` or ``g + 8`` of a warp's sixteen

    Examples
    --------
    >>> pieces(5, 2, 0)
    (BitField(word=2, at=0, bits=5, to=0),)
    >>> pieces(5, 2, 1)
    (BitField(word=2, at=5, bits=3, to=2), BitField(word=4, at=4, bits=2, to=0))
    """
    if bits == 3:
        whole = (BitField(step, 3 * row, 3, 0),)
        return whole if step < 3 else (BitField(2, 6 + row, 1, 2), BitField(row, 6, 2, 0))
    if bits == 4:
        return (BitField(step, 4 * row, 4, 0),)
    if row == 0:
        return (BitField(step, 0, bits, 0),)
    if bits == 5:
        return BitField(step, 5, 3, 2), BitField(4, 2 * step, 2, 0)
    assert bits == 6, bits
    third = 4 + step // 2  # two steps have three words to themselves
    if step % 2 == 0:
        return (BitField(third, 2, 6, 0),)
    return BitField(step - 1, 6, 2, 4), BitField(step, 6, 2, 2), BitField(third, 0, 2, 0)
