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


def planted(tokens: int, width: int, size: float, count: int = 4, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Normal float32 values with a few columns `size` times as large, and which columns these are, ascending.

    In the loud columns no value is small, so that each draws all of its token's rounding to itself.
    """
    rng = np.random.default_rng([seed, tokens, width])
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    loud = np.sort(rng.permutation(width)[:count])
    x[:, loud] = size * (1 + np.abs(x[:, loud])) * np.sign(x[:, loud])
    return x, loud


def mirrored(x: np.ndarray, loud: np.ndarray) -> np.ndarray:
    """The same with all but the loud columns negated.

    Every size, and so every scale and norm made of them, is as before. Half the difference of two products is what the
    quiet columns give, half their sum what the loud ones give: each can be held against its own size.
    """
    other = -x
    other[:, loud] = x[:, loud]
    return other


def by_column(got: Any, want: Any, loud: np.ndarray) -> tuple[float, float]:
    """`nmse` of the columns that are not loud, and of those that are."""
    got, want = to_float64(got), to_float64(want)
    quiet = np.setdiff1d(np.arange(want.shape[1]), loud)
    return nmse(got[:, quiet], want[:, quiet]), nmse(got[:, loud], want[:, loud])
