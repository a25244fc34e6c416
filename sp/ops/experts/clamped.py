"""The clamped SwiGLU activation of the experts of gpt-oss."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.ops.activations import sigmoid
from sp.ops.threads import run_parallel, token_slices

CLAMP, SLOPE = 7.0, 1.702
"""Bound of the inputs, and slope of the sigmoid; ``cuda/experts/clamped_swiglu.cuh`` has the same values."""


def clamped_swiglu(gate: Floats, up: Floats) -> Floats:
    """``(u + 1) * g * sigmoid(1.702 g)`` with ``g = min(gate, 7)`` and u = `up` cut to [-7, 7]. `gate`, `up`: float32
    (tokens, ffn), as the result; on the CPU, for the device see `sp.ops.experts.grouped.gated_rows`. Source: OpenAI,
    "gpt-oss-120b & gpt-oss-20b Model Card", 2025, and the code published with it.

    >>> clamped_swiglu(np.array([[100.0, -100.0]], np.float32), np.array([[100.0, 2.0]], np.float32)).round(3)
    array([[56., -0.]], dtype=float32)
    """
    y = np.empty_like(gate)

    def activate(tokens: slice) -> None:
        g = np.minimum(gate[tokens], np.float32(CLAMP))
        u = np.clip(up[tokens], np.float32(-CLAMP), np.float32(CLAMP))
        g *= sigmoid(np.float32(SLOPE) * g)
        np.multiply(u + np.float32(1), g, out=y[tokens])

    run_parallel(activate, token_slices(len(gate)))
    return y
