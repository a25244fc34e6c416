"""Random Gated DeltaNet layers for the device tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from compare import to_bf16, to_float64

PAIR, SMALL, LARGE = (4, 8, 64), (2, 6, 128), (16, 48, 128)  # key heads, value heads, head_dim
DECAYS = {"usual": 0.1, "weak": 1e-4, "strong": 30.0}

Layer = dict[str, np.ndarray]


def layer(sizes: tuple[int, int, int], tokens: int, decay: float = 0.1, alike: bool = False, seed: int = 0) -> Layer:
    """Random inputs, parameters and memory; bf16 arrays as uint16. `alike`: nearly the same token over and over."""
    key_heads, value_heads, dim = sizes
    channels = (2 * key_heads + value_heads) * dim
    rng = np.random.default_rng([seed, tokens, *sizes])
    normal = rng.standard_normal
    qkv = normal((tokens, channels))
    if alike:
        qkv = normal((1, channels)) + 0.1 * qkv
    return {
        "qkv": to_bf16(qkv),
        "z": to_bf16(normal((tokens, value_heads * dim))),
        "alpha": normal((tokens, value_heads)).astype(np.float32),
        "beta": (normal((tokens, value_heads)) + 2 * alike).astype(np.float32),
        "conv": (0.5 * normal((channels, 4))).astype(np.float32),
        "a": (-decay * rng.exponential(1.0, value_heads)).astype(np.float32),
        "dt_bias": normal(value_heads).astype(np.float32),
        "norm": (1 + 0.1 * normal(dim)).astype(np.float32),
        "history": to_float64(to_bf16(normal((3, channels)))).astype(np.float32),
        "state": (0.1 * normal((value_heads, dim, dim))).astype(np.float32),
    }


def on_device(arrays: Layer, place: Any) -> dict[str, Any]:
    """Copies in guarded memory."""
    return {name: place(a.shape, a.dtype, a) for name, a in arrays.items()}
