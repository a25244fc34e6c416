"""embedding: pick the rows of a packed table that token ids name."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.packed import GATHER_ROWS
from sp.quant import Weight

FEW_TOKENS = 64  # most tokens whose rows are too few blocks for the device
PARTS = 10  # blocks that then share a row


def embedding(ids: Ints, w: Weight) -> Floats:
    """Look token ids up; only the rows asked for are decoded.

    ``y[t] = w[ids[t]]``

    Parameters
    ----------
    ids : int64 (tokens,)
        On the device int32, and not looked at by the host: a row outside the table comes out as NaN there.
    w : Weight of shape (vocab, hidden)
        With the rows of the file, on the device too.

    Returns
    -------
    float32 (tokens, hidden)

    Raises
    ------
    ConfigError
        For an id outside the table.

    Examples
    --------
    >>> from sp.quant import F16, Weight
    >>> table = Weight.from_floats("token_embd.weight", np.eye(3, dtype=np.float32), F16)
    >>> embedding(np.array([2, 0]), table)
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    if is_device(ids):
        return _gathered(ids, w)
    return w.rows(ids)


def _gathered(ids: Any, w: Weight) -> Floats:
    y: Floats = import_cupy().empty((len(ids), w.shape[1]), np.float32)
    defines = {"FORMAT": w.format.ggml_type}
    parts = PARTS if len(ids) <= FEW_TOKENS else 1
    GATHER_ROWS.launch((len(ids), parts), ids, w.data, y, w.shape[0], w.shape[1], defines=defines)
    return y
