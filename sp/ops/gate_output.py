"""gate_output: from attention outputs to what the output matrix reads."""

from __future__ import annotations

from sp.arrays import Floats
from sp.ops.activations import sigmoid
from sp.ops.hadamard import hadamard

VALUE_BLOCK = 64  # llama.cpp rotates values in blocks of 64, whatever the head size


def gate_output(out: Floats, wide: Floats | None, unrotate: bool) -> Floats:
    """Turn outputs back where cached values were rotated, then multiply by the sigmoid of the gate.

    Parameters
    ----------
    out : float32 (tokens, heads, d)
        May be overwritten.
    wide : float32 (tokens, heads, 2 d), optional
        Each head's query and then its gate, as the wide query matrix gives them; None where there is no gate.
    unrotate : bool
        Whether values were cached rotated by a Hadamard matrix over blocks of 64.

    Returns
    -------
    float32 (tokens, heads * d)

    Examples
    --------
    >>> import numpy as np
    >>> gate_output(np.ones((1, 2, 1), np.float32), np.zeros((1, 2, 2), np.float32), False)
    array([[0.5, 0.5]], dtype=float32)
    """
    if unrotate:
        out = hadamard(out, VALUE_BLOCK)
    if wide is not None:
        out *= sigmoid(wide[..., out.shape[2] :])
    return out.reshape(len(out), out.shape[1] * out.shape[2])
