"""Add biases to the outputs of projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.elementwise import ADD_BIAS, BIAS_EACH, BIAS_THREADS, MOST_BIASES


def add_bias(xs: Sequence[Floats], biases: Sequence[Floats]) -> tuple[Floats, ...]:
    """``y_i[t] = x_i[t] + bias_i``, on the device rounded to bf16 once, in one launch. Returns a tuple of float32
    (tokens_i, out_i), on the device bf16 (uint16), on the CPU xs themselves.

    Parameters
    ----------
    xs : one to three arrays, float32 (tokens_i, out_i)
        Products that nothing else reads. On the device out_i is a multiple of 8.
    biases : as many arrays, float32 (out_i,)

    Examples
    --------
    >>> add_bias([np.ones((2, 2), np.float32)], [np.array([0.0, 2.0], np.float32)])[0]
    array([[1., 3.],
           [1., 3.]], dtype=float32)
    """
    pairs = list(zip(xs, biases, strict=True))
    assert 1 <= len(pairs) <= MOST_BIASES, f"{len(pairs)} arrays"
    for x, bias in pairs:
        assert bias.shape == x.shape[1:], f"x {x.shape}, bias {bias.shape}"
    if not is_device(xs[0]):
        for x, bias in pairs:
            x += bias
        return tuple(xs)
    outs = tuple(import_cupy().empty(x.shape, np.uint16) for x in xs)
    given: list[Any] = []
    rows = blocks = 0
    for (x, bias), y in zip(pairs, outs, strict=True):
        assert x.shape[1] % BIAS_EACH == 0, f"x {x.shape}"
        if len(x):
            given += [x, bias, y, *x.shape]
            rows, blocks = max(rows, len(x)), blocks + -(-x.shape[1] // (BIAS_EACH * BIAS_THREADS))
    if given:
        given += [None, None, None, 0, 0] * (MOST_BIASES - len(given) // 5)
        ADD_BIAS.launch((rows, blocks), *given)
    return outs
