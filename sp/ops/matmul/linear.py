"""linear: y = x Wᵀ, whatever format W is packed in."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, byte_product, round_rows
from sp.ops.threads import run_parallel, token_slices
from sp.quant import F32, Weight

SCRATCH_VALUES = 1 << 23
"""Most values of a packed weight decoded at once (32 MiB of float32), so that a 248K-row head needs no 5 GB."""


def linear(x: Floats, w: Weight) -> Floats:
    """Multiply activations by a weight.

    ``y[t, o] = sum_i x[t, i] * w[o, i]``

    Parameters
    ----------
    x : float32 (tokens, in)
    w : Weight of shape (out, in)
        F32 weights are used in place; packed ones are decoded a slab of rows at a time, on every call. Products of
        `ROUNDED_TOKENS` and more are made in `w.math`.

    Returns
    -------
    float32 (tokens, out)

    Examples
    --------
    >>> w = Weight.from_floats("w", np.array([[1, 2], [3, 4], [5, 6]], np.float32), F32)
    >>> linear(np.array([[1, 10]], np.float32), w)
    array([[21., 43., 65.]], dtype=float32)
    """
    rows, width = w.shape
    assert x.shape == (len(x), width), f"{w.name}: x {x.shape} against weight {w.shape}"
    kind = BYTE_KINDS.get(w.math) if len(x) >= ROUNDED_TOKENS else None
    if kind is not None:
        loud = loud_channels(x)
        given = round_rows(x, kind, loud, True)
    out = np.empty((len(x), rows), x.dtype)
    step = max(1, rows if w.format is F32 else SCRATCH_VALUES // width)
    for start in range(0, rows, step):
        some = slice(start, start + step)
        weight = (w.dense() if w.format is F32 else w.format.decode(w.data[some])).T
        if kind is not None:
            out[:, some] = byte_product(given, round_rows(weight.T, kind, loud, False))
            continue

        def multiply(tokens: slice, some: slice = some, weight: Floats = weight) -> None:
            np.matmul(x[tokens], weight, out=out[tokens, some])

        run_parallel(multiply, token_slices(len(x)))
    return out
