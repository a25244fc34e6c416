"""Hashes of results: arrays by dtype, shape and every bit; what a result does not say anything about is left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def fingerprint(result: Any) -> str:
    """The first 16 digits of the SHA-256 of all arrays, numbers and words in a result."""
    digest = hashlib.sha256()
    _add(digest, result)
    return digest.hexdigest()[:16]


def _host(value: Any) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "get") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return np.asarray(value.get())
    return None


def _add(digest: Any, value: Any) -> None:
    array = _host(value)
    if array is not None:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif hasattr(value, "means") and hasattr(value, "held"):  # InputTiles: values, not where they lie
        _add(digest, (value.values(), value.means(), value.squares))
    elif isinstance(value, Mapping):
        _add(digest, [item for key in sorted(value) for item in (key, value[key])])
    elif isinstance(value, (str, bytes, int, float, bool, np.generic)) or value is None:
        digest.update(f"{value!r};".encode() if not isinstance(value, np.generic) else f"{value.item()!r};".encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(digest, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Sequence):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _add(digest, item)
    else:
        raise TypeError(f"no fingerprint for {type(value)}")
