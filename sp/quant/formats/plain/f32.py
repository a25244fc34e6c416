"""F32: the values themselves, little endian."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, checked_bytes, checked_values
from sp.quant.packing import Packing, Plane
from sp.quant.registry import register_format


def _encode(values: Floats) -> Bytes:
    return checked_values("F32", 1, values).astype("<f4").view(np.uint8)


def _decode(data: Bytes) -> Floats:
    return checked_bytes("F32", 4, data).view("<f4")


F32 = register_format(BlockFormat("F32", 0, 1, 4, _encode, _decode, Packing(1, Plane(32, 0))))
"""4 bytes a value. Encoding copies the bits, NaN and Inf included; decoding is a view of the bytes."""
