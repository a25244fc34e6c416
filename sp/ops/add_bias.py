"""add_bias: what a projection with a bias adds to every token."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.elementwise import ADD_BIAS, BIAS_EACH, BIAS_THREADS


def add_bias(x: Floats, bias: Floats) -> Floats:
    """``y[t] = x[t] + bias``, on the device rounded to bf16 once.

    Parameters
    ----------
    x : float32 (tokens, out)
        A product that only this reads. On the device out is a multiple of 8.
    bias : float32 (out,)

    Returns
    -------
    float32 (tokens, out), on the device bf16 (uint16)
        On the CPU x itself.

    Examples
    --------
    >>> add_bias(np.ones((2, 2), np.float32), np.array([0.0, 2.0], np.float32))
    array([[1., 3.],
           [1., 3.]], dtype=float32)
    """
    tokens, width = x.shape
    assert bias.shape == (width,), f"x {x.shape}, bias {bias.shape}"
    if not is_device(x):
        x += bias
        return x
    assert width % BIAS_EACH == 0, f"x {x.shape}"
    y: Floats = import_cupy().empty((tokens, width), np.uint16)
    if tokens:
        ADD_BIAS.launch((tokens, -(-width // (BIAS_EACH * BIAS_THREADS))), x, bias, y, width)
    return y
