"""Pieces of codes: every bit of a thread's words is a bit of one code, and every bit of every code lies somewhere."""

from __future__ import annotations

import pytest

from sp.quant.pieces import MOST_PIECES, PIECED, ROWS, STEPS, pieces

PLACES = [(step, row) for step in range(STEPS) for row in range(ROWS)]


@pytest.mark.parametrize("bits", PIECED)
def test_codes_and_words_share_their_bits_one_to_one(bits: int) -> None:
    held = [
        ((piece.word, piece.at + i), (*place, piece.to + i))
        for place in PLACES
        for piece in pieces(bits, *place)
        for i in range(piece.bits)
    ]
    assert sorted(bit for bit, _ in held) == [(word, bit) for word in range(bits) for bit in range(8)]
    assert sorted(bit for _, bit in held) == [(*place, bit) for place in PLACES for bit in range(bits)]
    assert max(len(pieces(bits, *place)) for place in PLACES) <= MOST_PIECES


@pytest.mark.parametrize("bits", PIECED)
def test_a_byte_has_room_for_a_code_from_where_its_upper_bits_lie(bits: int) -> None:
    """Codes multiplied in place are at most a byte, and all inputs of a group of 32 have one scale."""
    for row in range(ROWS):
        firsts = [pieces(bits, step, row)[0] for step in range(STEPS)]
        assert all(first.at >= first.to and first.at - first.to + bits <= 8 for first in firsts)
        assert bits == 3 or len({first.at - first.to for first in firsts}) == 1  # Q3_K has groups of 16


@pytest.mark.parametrize(("bits", "whole"), [(3, 6), (4, 8), (5, 4), (6, 6)])
def test_as_many_codes_as_can_be_lie_whole(bits: int, whole: int) -> None:
    """A byte has room for 8 // bits of them; of the six of three bits there are as many places."""
    assert sum(len(pieces(bits, *place)) == 1 for place in PLACES) == whole
