"""sigmoid, silu, softplus, and the gated activations swiglu and geglu, safe at any magnitude."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.elementwise import SWIGLU
from sp.kernels.specs.geglu import GEGLU
from sp.native.code import LANES
from sp.native.elementwise import gated
from sp.native.team import address, task
from sp.ops.threads import run_parallel, team, token_slices

SOFTPLUS_LINEAR = 20.0  # above this softplus(x) is x, as in torch and llama.cpp; the difference is 2e-9


def sigmoid(x: Floats) -> Floats:
    """``1 / (1 + exp(-x))``, elementwise, same shape.

    Examples
    --------
    >>> sigmoid(np.array([0.0, -1000.0, 1000.0], np.float32))
    array([0.5, 0. , 1. ], dtype=float32)
    """
    with np.errstate(over="ignore"):  # exp(-x) = inf correctly yields 0
        y = np.exp(-x)
    y += 1
    return np.reciprocal(y, out=y)


def silu(x: Floats, out: Floats | None = None) -> Floats:
    """``x * sigmoid(x)``, elementwise, same shape; written to `out` if there is one."""
    with np.errstate(over="ignore"):
        y = np.exp(-x, out=out)
    y += 1
    return np.divide(x, y, out=y)


def softplus(x: Floats) -> Floats:
    """``log(1 + exp(x))``, elementwise, same shape; x itself above 20.

    Examples
    --------
    >>> softplus(np.array([-200.0, 50.0], np.float32)).tolist()
    [0.0, 50.0]
    """
    return np.where(x > SOFTPLUS_LINEAR, x, np.log1p(np.exp(np.minimum(x, SOFTPLUS_LINEAR))))


def swiglu(gate: Floats, up: Floats) -> Floats:
    """``silu(gate) * up``: the activation between the two halves of a gated feed-forward block.

    Parameters
    ----------
    gate, up : float32 (tokens, ffn)
        On the device bf16 (uint16), as the result; a multiple of 8 values.

    Returns
    -------
    float32 (tokens, ffn)

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020.

    Examples
    --------
    >>> swiglu(np.array([[100.0]], np.float32), np.array([[2.0]], np.float32))
    array([[200.]], dtype=float32)
    """
    if is_device(gate):
        assert gate.shape == up.shape, f"gate {gate.shape}, up {up.shape}"
        assert gate.size % 8 == 0, f"{gate.size} values"
        out: Floats = import_cupy().empty_like(gate)
        SWIGLU.launch((-(-gate.size // 2048),), gate, up, out, gate.size // 8)
        return out
    made = _gated(gate, up, gelu=False)
    if made is not None:
        return made
    y, parts = np.empty_like(gate), token_slices(len(gate))
    gates, ups, outs = ([each[part] for part in parts] for each in (gate, up, y))
    run_parallel(silu, gates, outs)
    run_parallel(np.multiply, outs, ups, outs)
    return y


def _gated(gate: Floats, up: Floats, gelu: bool) -> Floats | None:
    """Compute either activation in a compiled loop; return None if NumPy has to do it."""
    whole = all(each.dtype == np.float32 and each.flags.c_contiguous for each in (gate, up))
    if not whole or not gate.size or gate.size % LANES:
        return None
    y = np.empty(gate.shape, np.float32)
    items, where = gate.size // LANES, (address(gate), address(up), address(y))
    team().do([task(gated(gelu).address, items, *where, alone=len(gate) == 1)])
    return y


def geglu(gate: Floats, up: Floats) -> Floats:
    """``gelu(gate) * up``, with the tanh approximation of gelu; arrays as in `swiglu`. ``gelu(x) = x / 2 * (1 +
    tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``, written as ``x * sigmoid(2 ...)``. Source: Hendrycks and Gimpel,
    "Gaussian Error Linear Units", 2016.

    >>> geglu(np.array([[100.0, -100.0]], np.float32), np.array([[2.0, 2.0]], np.float32))
    array([[200.,  -0.]], dtype=float32)
    """
    if is_device(gate):
        assert gate.shape == up.shape, f"gate {gate.shape}, up {up.shape}"
        assert gate.size % 8 == 0, f"{gate.size} values"
        out: Floats = import_cupy().empty_like(gate)
        GEGLU.launch((-(-gate.size // 2048),), gate, up, out, gate.size // 8)
        return out
    made = _gated(gate, up, gelu=True)
    if made is not None:
        return made
    y = np.empty_like(gate)

    def activate(tokens: slice) -> None:
        x = gate[tokens]
        turned = sigmoid(np.float32(2 * np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x))
        np.multiply(turned * x, up[tokens], out=y[tokens])

    run_parallel(activate, token_slices(len(gate)))
    return y
