"""geglu: the activation between the two halves of a gated feed-forward, with GELU."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.geglu import GEGLU
from sp.ops.activations import sigmoid
from sp.ops.threads import run_parallel, token_slices


def geglu(gate: Floats, up: Floats) -> Floats:
    """``gelu(gate) * up``, gelu by its tanh approximation; arrays as of `swiglu`.
    ``gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``, written as ``x * sigmoid(2 ...)``. Source:
    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> geglu(np.array([[100.0, -100.0]], np.float32), np.array([[2.0, 2.0]], np.float32))
    array([[200.,  -0.]], dtype=float32)
    """
    if is_device(gate):
        assert gate.shape == up.shape, f"gate {gate.shape}, up {up.shape}"
        assert gate.size % 8 == 0, f"{gate.size} values"
        out: Floats = import_cupy().empty_like(gate)
        GEGLU.launch((-(-gate.size // 2048),), gate, up, out, gate.size // 8)
        return out
    y = np.empty_like(gate)

    def activate(tokens: slice) -> None:
        x = gate[tokens]
        turned = sigmoid(np.float32(2 * np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x))
        np.multiply(turned * x, up[tokens], out=y[tokens])

    run_parallel(activate, token_slices(len(gate)))
    return y
