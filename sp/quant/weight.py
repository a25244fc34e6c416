"""A weight: packed blocks, their format and the logical shape. Only ops read the blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import BlockFormat

Found = TypeVar("Found")


class Math(StrEnum):
    """Operand precision of the tensor cores; sums are float32, for int8 integers first.

    Each weight has its own (`Weight.math`). Products of few rows, as in decoding, are bound by reading weights and
    always use the packed weights directly. On the CPU BF16 is float32, and the others are NumPy references of the
    device's kernels.
    """

    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"  # e4m3; needs compute capability 9.0


@dataclass(frozen=True)
class Weight:
    """A tensor as it is stored in the file.

    Attributes
    ----------
    name : str
        The tensor's name in the file.
    format : BlockFormat
        How a row is packed.
    shape : tuple of int
        Logical shape, fastest axis last: ``(out, in)`` for a matrix.
    data : uint8 array of shape ``shape[:-1] + (row_bytes,)``
        The packed rows; usually a view of a memory-mapped file.
    math : Math
        Operand precision of products with many rows, as in prefill.

    Raises
    ------
    ConfigError
        If `data` does not have the shape that `shape` and `format` require.

    Examples
    --------
    >>> from sp.quant import Q8_0, Weight
    >>> w = Weight.from_floats("w", np.ones((4, 64), np.float32), Q8_0)
    >>> w.data.shape, w.dense().shape
    ((4, 68), (4, 64))
    """

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    data: Bytes = field(repr=False, compare=False)
    math: Math = Math.BF16

    def __post_init__(self) -> None:
        if not self.shape:
            raise ConfigError(f"{self.name}: a weight needs at least one axis")
        expected = (*self.shape[:-1], self.format.row_bytes(self.shape[-1]))
        if self.data.dtype != np.uint8 or self.data.shape != expected:
            raise ConfigError(
                f"{self.name}: {self.format.name} {self.shape} needs uint8 data of shape {expected}; "
                f"got {self.data.dtype} of shape {self.data.shape}"
            )

    @property
    def nbytes(self) -> int:
        """Packed size in bytes."""
        return self.format.nbytes(self.shape)

    def dense(self) -> Floats:
        """Return all values as float32 of shape `shape`; a view of the bytes if the format is F32."""
        return self.format.decode(self.data)

    @cached_property
    def _facts(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to copy or pickle: cached facts are left out, as they may refer to this address in
        memory."""
        return {name: value for name, value in self.__dict__.items() if name != "_facts"}

    def found(self, find: Callable[[Weight], Found]) -> Found:
        """Return ``find(self)``, computed once and cached with the weight.

        >>> from sp.quant import F32
        >>> Weight.from_floats("w", np.ones((4, 64), np.float32), F32).found(lambda w: w.data.nbytes)
        1024
        """
        if find not in self._facts:
            self._facts[find] = find(self)
        fact: Found = self._facts[find]
        return fact

    @classmethod
    def from_floats(cls, name: str, values: Floats, fmt: BlockFormat) -> Weight:
        """Pack float32 `values` of at least one axis into `fmt`."""
        return cls(name, fmt, tuple(int(size) for size in np.shape(values)), fmt.encode(values))
