"""Pieces: where the bits of codes of three to six bits lie in the words that a thread holds of a tile.

A thread holds 32 codes of a tile, four in each of eight places (four steps, two rows), and a word has a byte for each
of the four. So one layout serves all four bytes: a place has its bits there in one piece, or in up to three where a
byte has no room for more. A code that lies whole is an operand as soon as the rest of its word is masked away, at
whichever bit it begins: products of bytes give it times a power of two. That is why codes of five and six bits do not
lie as four bits and the others apart: at half of the places, and at three quarters, nothing must be put together.

The packing in NumPy (`sp.ops.matmul.fragment_order`) and, through ``packings.cuh``, all kernels know it from here."""

from __future__ import annotations

from typing import NamedTuple

STEPS, ROWS, MOST_PIECES = 4, 2, 3
PIECED = (3, 4, 5, 6)  # bits of the codes that lie in pieces


class Piece(NamedTuple):
    """`bits` bits of a code, from its bit `to` on, at bit `at` of the bytes of a word."""

    word: int
    at: int
    bits: int
    to: int


def pieces(bits: int, step: int, row: int) -> tuple[Piece, ...]:
    """The pieces of the codes of a place, the upper bits first; as bytes they stay where these lie.

    Parameters
    ----------
    bits : {3, 4, 5, 6}, of a code; there are as many words
    step : int, of 16 inputs, 0 to 3
    row : {0, 1}, the rows ``g`` or ``g + 8`` of a warp's sixteen

    Examples
    --------
    >>> pieces(5, 2, 0)
    (Piece(word=2, at=0, bits=5, to=0),)
    >>> pieces(5, 2, 1)
    (Piece(word=2, at=5, bits=3, to=2), Piece(word=4, at=4, bits=2, to=0))
    """
    if bits == 3:
        whole = (Piece(step, 3 * row, 3, 0),)
        return whole if step < 3 else (Piece(2, 6 + row, 1, 2), Piece(row, 6, 2, 0))
    if bits == 4:
        return (Piece(step, 4 * row, 4, 0),)
    if row == 0:
        return (Piece(step, 0, bits, 0),)
    if bits == 5:
        return Piece(step, 5, 3, 2), Piece(4, 2 * step, 2, 0)
    assert bits == 6, bits
    third = 4 + step // 2  # two steps have three words to themselves
    if step % 2 == 0:
        return (Piece(third, 2, 6, 0),)
    return Piece(step - 1, 6, 2, 4), Piece(step, 6, 2, 2), Piece(third, 0, 2, 0)
