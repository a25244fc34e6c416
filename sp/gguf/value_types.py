"""The GGUF value types, tensor types and the limits a reader holds every file to.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Type ids, and names
and sizes of tensor types, come from the `gguf` package, so that tensors `sp` cannot decode are still listed by name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
DAMAGED = "the file is damaged or hostile: get it again and compare its checksum"

Array = npt.NDArray[Any]
Value = bool | int | float | str | list[str] | list[int] | list[float] | list[bool] | Array
"""What a metadata key may hold. A reader gives scalars, NumPy arrays and lists of str."""


ValueType = GGUFValueType
"""Type ids of metadata values."""

_CODES = {**dict(enumerate("BbHhIif?")), **dict(zip((10, 11, 12), "Qqd", strict=True))}
DTYPES: Mapping[int, np.dtype[Any]] = {ValueType(kind): np.dtype(f"<{code}") for kind, code in _CODES.items()}
"""NumPy type of every fixed-size value type."""
STRUCTS: Mapping[int, struct.Struct] = {
    ValueType(kind): struct.Struct(f"<{code}") for kind, code in _CODES.items() if code != "?"
}
"""How a scalar of every number type is packed."""

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    int(kind): (kind.name, block_size, block_bytes) for kind, (block_size, block_bytes) in GGML_QUANT_SIZES.items()
}
"""ggml type id -> (name, values in a block, bytes in a block)."""

# Limits. The largest real vocabulary known (262K tokens, 515K merges) needs a header of some 16 MiB.
MAX_HEADER = 48 << 20  # bytes from the magic to the last tensor info
MAX_STRING = 1 << 20  # bytes of one string value
MAX_KEY = (1 << 16) - 1  # bytes; the specification's own limit
MAX_TENSOR_NAME = 63  # bytes; ggml keeps 64 with the terminating zero
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 20  # strings in all arrays of one file
MAX_ARRAY = 1 << 22  # elements of one array of numbers
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_DIM = (1 << 31) - 1
MAX_ELEMENTS = 1 << 40  # of one tensor
MAX_SHARDS = 1000
