"""Gather rows of a packed table by token id."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.packed import GATHER_ROWS
from sp.ops.matmul.few_rows import decoded
from sp.quant import Weight

FEW_TOKENS = 64  # up to so many rows are too few blocks to fill the device
PARTS = 10  # blocks per row in that case


def embedding(ids: Ints, w: Weight) -> Floats:
    """Look up token ids; only their rows are decoded.

    ``y[t] = w[ids[t]]``

    Parameters
    ----------
    ids : int64 (tokens,), or of any shape
        On the device int32, and not checked by the host: an id outside the table yields NaN there.
    w : Weight of shape (vocab, hidden)
        Rows packed as in the file, on the device too.

    Returns
    -------
    float32 (tokens, hidden), in general ``ids.shape + (hidden,)``

    Raises
    ------
    ConfigError
        For an id outside the table, or a weight of one axis.

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
    if len(w.shape) < 2:
        raise ConfigError(f"{w.name}: a weight of one axis has no rows to pick")
    if ids.size and (ids.min() < 0 or ids.max() >= w.shape[0]):
        raise ConfigError(f"{w.name}: row {ids.min()}..{ids.max()} asked of {w.shape[0]} rows")
    rows = w.data[ids]
    return decoded(rows.reshape(-1, rows.shape[-1]), w.format).reshape(*rows.shape[:-1], w.shape[-1])


def _gathered(ids: Any, w: Weight) -> Floats:
    y: Floats = import_cupy().empty((len(ids), w.shape[1]), np.float32)
    defines = {"FORMAT": w.format.ggml_type}
    parts = PARTS if len(ids) <= FEW_TOKENS else 1
    GATHER_ROWS.launch((len(ids), parts), ids, w.data, y, w.shape[0], w.shape[1], defines=defines)
    return y
