"""gate_output: from attention outputs to what the output matrix reads."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.attention_rows import GATE_OUTPUT, ROWS_A_BLOCK
from sp.ops.activations import sigmoid
from sp.ops.hadamard import hadamard

VALUE_BLOCK = 64  # llama.cpp rotates values in blocks of 64, whatever the head size


def rotated_block(head_dim: int, most: int | None = None) -> int:
    """Values over which a head is rotated: the largest power of two that divides its size, up to `most`.

    >>> rotated_block(128), rotated_block(96), rotated_block(128, VALUE_BLOCK)
    (128, 32, 64)
    """
    block = head_dim & -head_dim
    return block if most is None else min(block, most)


def gate_output(out: Floats, wide: Floats | None, unrotate: bool) -> Floats:
    """Turn outputs back where cached values were rotated, then multiply by the sigmoid of the gate. Returns float32
    (tokens, heads * d), on the device bf16.

    Parameters
    ----------
    out : float32 (tokens, heads, d), on the device bf16, may be overwritten
    wide : float32 (tokens, heads, 2 d), on the device bf16, optional
        Each head's query and then its gate, as the wide query matrix gives them; None where there is no gate.
    unrotate : bool
        Whether values were cached rotated by a Hadamard matrix over blocks of 64, or less; see `rotated_block`.

    Examples
    --------
    >>> gate_output(np.ones((1, 2, 1), np.float32), np.zeros((1, 2, 2), np.float32), False)
    array([[0.5, 0.5]], dtype=float32)
    """
    if is_device(out):
        return _on_device(out, wide, unrotate)
    if unrotate:
        out = hadamard(out, rotated_block(out.shape[2], VALUE_BLOCK))
    if wide is not None:
        out *= sigmoid(wide[..., out.shape[2] :])
    return out.reshape(len(out), out.shape[1] * out.shape[2])


def _on_device(out: Floats, wide: Floats | None, unrotate: bool) -> Floats:
    tokens, heads, head_dim = out.shape
    if wide is None and not unrotate:
        return out.reshape(tokens, heads * head_dim)
    assert wide is None or wide.shape == (tokens, heads, 2 * head_dim), f"out {out.shape}, wide {wide.shape}"
    y: Floats = import_cupy().empty((tokens, heads * head_dim), np.uint16)
    defines = {"HEAD_DIM": head_dim, "GATED": int(wide is not None), "UNROTATE": int(unrotate)}
    GATE_OUTPUT.launch((-(-tokens * heads // ROWS_A_BLOCK),), out, wide, y, tokens * heads, defines=defines)
    return y
