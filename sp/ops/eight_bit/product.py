"""product: quantised inputs times a packed weight, with the sums that the kernel makes."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.errors import ModelError
from sp.kernels.specs.matmul.gemm_int8 import GROUP
from sp.ops.eight_bit.inputs import Quantised
from sp.ops.eight_bit.integer_form import integer_form
from sp.quant import Weight


def product(x: Quantised, w: Weight) -> Floats:
    """Multiply quantised inputs by a weight as `gemm_int8` does.

    Of each group of 32 inputs, or of each half where scales of the weight cover 16, ``n = sum of codes * codes`` is an
    integer. Then, in float32 and group after group,

    ``y += w.scale * (x.scale * n) + w.shift * (x.scale * x.sum)``

    Parameters
    ----------
    x : Quantised (tokens, in)
    w : Weight (out, in)
        In a format that `integer_form` takes.

    Returns
    -------
    float32 (tokens, out)

    Examples
    --------
    >>> from sp.ops.eight_bit.inputs import quantise
    >>> from sp.quant import Q8_0
    >>> w = Weight.from_floats("w", np.ones((2, 64), np.float32), Q8_0)
    >>> product(quantise(np.full((1, 64), 0.5, np.float32)), w).round(2)
    array([[32., 32.]], dtype=float32)
    """
    tokens, width = x.codes.shape
    if w.shape != (w.shape[0], width):
        raise ModelError(f"{w.name} {w.shape}: inputs {x.codes.shape} do not fit")
    form = integer_form(w)
    each = width // form.scales.shape[1]
    sums = x.scales * x.sums.astype(np.float32)
    y = np.zeros((tokens, w.shape[0]), np.float32)
    codes, given = form.codes.astype(np.float32), x.codes.astype(np.float32)
    for part in range(width // each):
        some, group = slice(part * each, (part + 1) * each), part * each // GROUP
        whole = given[:, some] @ codes[:, some].T  # integers below 2^24, so float32 is exact
        y += form.scales[:, part] * (x.scales[:, group, None] * whole)
        if form.shifts is not None and (part + 1) * each % GROUP == 0:
            y += form.shifts[:, group] * sums[:, group, None]
    return y
