"""Stack: the matrices of experts among the rows of one weight, and their biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sp.arrays import Floats
from sp.quant import Weight


@dataclass(frozen=True)
class Stack:
    """Matrices of one shape, one an expert. `weight`: Weight (count * pitch, in), the rows of one expert lie together,
    experts one under the other. On the device a PackedWeight.

    >>> import numpy as np
    >>> from sp.quant import F32
    >>> both = Weight.from_floats("both", np.arange(8, dtype=np.float32).reshape(8, 1), F32)
    >>> stack = Stack(both, 4, 2, 2)
    >>> stack.count, stack[1].dense().ravel().tolist()
    (2, [6.0, 7.0])
    """

    weight: Any
    pitch: int  # rows of one expert
    first: int  # first and rows: those of them that are this matrix: where gate and up share a tensor, each is a half
    rows: int
    bias: Floats | None = None  # float32 (count, rows), of every expert, added to its product

    @property
    def count(self) -> int:
        """Experts."""
        return int(self.weight.shape[0]) // self.pitch

    def __getitem__(self, expert: int) -> Weight:
        """The matrix (rows, in) of one expert, not copied; on the CPU."""
        start = expert * self.pitch + self.first
        w: Weight = self.weight
        return replace(w, shape=(self.rows, w.shape[1]), data=w.data[start : start + self.rows])
