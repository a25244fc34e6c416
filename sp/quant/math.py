"""Math: the arithmetic that products of a prompt with a weight are made in."""

from __future__ import annotations

from enum import StrEnum


class Math(StrEnum):
    """Operands of the tensor cores; sums are float32, of int8 whole numbers first.

    A weight says which (`Weight.math`). Products of few rows, as in decoding, are bound by reading weights and always
    made from these as they are. On the CPU BF16 is float32, and the others are the twins of what the device does.
    """

    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    """e4m3; needs compute capability 9.0."""
