"""SplitWeight: a narrow F32 matrix on the device, whose products are exact to the last bit of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.specs.matmul.sum_terms import SUM_TERMS, TERM_THREADS
from sp.ops.array_module import array_module
from sp.ops.matmul.packed import PackedWeight, allocate, pack_rows
from sp.quant import BF16
from sp.quant.packing import TILE
from sp.quant.repack import EXACT_TERMS

ALIGN = 128  # values: kernels that read a result need 16-byte alignment


@dataclass(frozen=True)
class SplitWeight:
    """Three BF16 matrices, stacked along the rows, whose sum equals an F32 matrix to the bit. A float32 has 24
    significant bits, a BF16 8 of them: each term has the bits that the one before drops. The matrix kernels multiply by
    the terms as by any BF16 weight, and `sum_terms` adds up the results."""

    terms: PackedWeight  # BF16 (3 * stride, in); term i starts at row ``i * stride``
    shape: tuple[int, int]  # ``(out, in)`` of the matrix

    @property
    def stride(self) -> int:
        """Rows between terms: whole tiles."""
        return self.terms.shape[0] // EXACT_TERMS

    @classmethod
    def empty(cls, name: str, shape: tuple[int, ...]) -> SplitWeight:
        """Allocate an unfilled weight on the current device; ModelError if rows are not a multiple of 64 values."""
        stride = -(-int(shape[0]) // TILE) * TILE
        return cls(allocate(name, BF16, (EXACT_TERMS * stride, int(shape[1]))), (int(shape[0]), int(shape[1])))

    def fill(self, start: int, raw: Any) -> None:
        """Store the rows from `start` on, a multiple of 64: float32 as uint8 (n, 4 in), on the device of the weight."""
        xp, whole = array_module(raw), -(-len(raw) // TILE) * TILE
        for i, term in enumerate(bf16_terms(raw)):
            rows = xp.zeros((whole, term.shape[1]), np.uint8)
            rows[: len(term)] = term
            pack_rows(self.terms, i * self.stride + start, rows)


def bf16_terms(raw: Any) -> list[Any]:
    """Split rows of float32 bytes into three of BF16 bytes, whose values add up to them: uint8 (n, 4 k) -> three (n, 2
    k).

    >>> value = np.float32(1 / 3)
    >>> terms = [each.view(np.uint16) for each in bf16_terms(value.reshape(1, 1).view(np.uint8))]
    >>> sum((np.uint32(each[0, 0]) << 16).view(np.float32) for each in terms) == value
    np.True_
    """
    rest, terms = raw.view(np.float32), []
    for _ in range(EXACT_TERMS):
        bits = rest.view(np.uint32) & np.uint32(0xFFFF0000)
        terms.append((bits >> np.uint32(16)).astype(np.uint16).view(np.uint8))
        rest = rest - bits.view(np.float32)
    return terms


def sum_terms(x: Any, rows: int, *, f32: bool) -> list[Any]:
    """Add up products with the three terms, for several weights of one shape. `x`: cupy float32 (weights, tokens, 3 *
    stride); `rows`: rows of the matrices, at most stride; `f32`: True for float32 results; otherwise BF16 (uint16).
    Returns a list of cupy (tokens, rows)."""
    weights, tokens, width = x.shape
    values = tokens * rows
    pitch = -(-values // ALIGN) * ALIGN
    y = import_cupy().empty((weights, pitch), np.float32 if f32 else np.uint16)
    if values:
        into = (None, y) if f32 else (y, None)
        grid, stride = (-(-values // TERM_THREADS), weights), width // EXACT_TERMS
        SUM_TERMS.launch(grid, x, *into, values, pitch, rows, stride, defines={"WIDE": int(f32)})
    return [y[i, :values].reshape(tokens, rows) for i in range(weights)]
