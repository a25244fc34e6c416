"""embedding: pick the rows of a packed table that token ids name."""

from __future__ import annotations

from sp.arrays import Floats, Ints
from sp.quant import Weight


def embedding(ids: Ints, w: Weight) -> Floats:
    """Look token ids up; only the rows asked for are decoded.

    ``y[t] = w[ids[t]]``

    Parameters
    ----------
    ids : int64 (tokens,)
    w : Weight of shape (vocab, hidden)

    Returns
    -------
    float32 (tokens, hidden)

    Raises
    ------
    ConfigError
        For an id outside the table.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F16, Weight
    >>> table = Weight.from_floats("token_embd.weight", np.eye(3, dtype=np.float32), F16)
    >>> embedding(np.array([2, 0]), table)
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    return w.rows(ids)
