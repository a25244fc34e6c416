"""How a device result is compared with its float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_float64(array: Any) -> np.ndarray:
    """A host or device array as float64; uint16 holds bf16."""
    host = array if isinstance(array, np.ndarray) else array.get()
    if host.dtype == np.uint16:
        host = (host.astype(np.uint32) << 16).view(np.float32)
    return host.astype(np.float64)


def to_bf16(array: np.ndarray) -> np.ndarray:
    """Float values rounded to the nearest bf16 (ties to even), as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def nmse(got: Any, want: Any) -> float:
    """Squared error over the squared size of `want`; infinite when `got` holds a NaN or has another shape."""
    got, want = to_float64(got), to_float64(want)
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.sum((got - want) ** 2) / max(float(np.sum(want**2)), 1e-300))
