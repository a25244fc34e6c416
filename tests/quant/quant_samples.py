"""Inputs the encoder tests share: what weights look like, and what they should never look like."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.quant import BlockFormat


def samples(n: int, seed: int = 0) -> dict[str, Floats]:
    """Named float32 arrays of `n` values, `n` a multiple of 256."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    cases = {
        "normal": normal,
        "weights": normal * 0.02,
        "laplace": rng.laplace(size=n),
        "outliers": normal * np.where(rng.random(n) < 0.01, 30, 1),
        "heavy_tail": rng.standard_cauchy(n) * 0.01,
        "positive": np.abs(normal),
        "negative": -np.abs(normal),
        "sparse": normal * (rng.random(n) < 0.1),
        "integers": rng.integers(-8, 8, n).astype(np.float64),
        "mixed_scales": normal * np.repeat(10.0 ** rng.uniform(-20, 3, n // 16), 16),
        "zero": np.zeros(n),
        "constant": np.full(n, 0.37),
        "negative_constant": np.full(n, -0.37),
        "tiny": normal * 1e-7,
        "vanishing": normal * 1e-25,
    }
    return {name: values.astype(np.float32) for name, values in cases.items()}


def writes(fmt: BlockFormat) -> bool:
    """Return True if a format declares an encoder."""
    try:
        fmt.encode(np.zeros(fmt.block_size, np.float32))
    except ConfigError:
        return False
    return True


def rms(values: Floats) -> float:
    """Root mean square in float64."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
