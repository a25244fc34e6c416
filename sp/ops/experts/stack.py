"""The matrices of experts, stacked as the rows of one weight, and their biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sp.arrays import Floats
from sp.quant import Weight


@dataclass(frozen=True)
class Stack:
    """Matrices of one shape, one per expert. `weight`: Weight (count * pitch, in), the rows of one expert are
    consecutive. On the device a PackedWeight.

    >>> import numpy as np
    >>> from sp.quant import F32
    >>> both = Weight.from_floats("both", np.arange(8, dtype=np.float32).reshape(8, 1), F32)
    >>> stack = Stack(both, 4, 2, 2)
    >>> stack.count, stack[1].dense().ravel().tolist()
    (2, [6.0, 7.0])
    """

    weight: Any
    pitch: int  # rows per expert
    first: int  # first and rows: the part of these rows that is this matrix; gate and up in one tensor are halves
    rows: int
    bias: Floats | None = None  # float32 (count, rows), added to each expert's product

    @property
    def count(self) -> int:
        """Number of experts."""
        return int(self.weight.shape[0]) // self.pitch

    def __getitem__(self, expert: int) -> Weight:
        """Return the matrix (rows, in) of one expert, without a copy; on the CPU."""
        start = expert * self.pitch + self.first
        w: Weight = self.weight
        return replace(w, shape=(self.rows, w.shape[1]), data=w.data[start : start + self.rows])
