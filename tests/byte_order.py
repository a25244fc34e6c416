"""The order of inputs in quantised rows, as round_rows.cu defines it."""

from __future__ import annotations

import numpy as np

from sp.kernels.specs.matmul.gemm_bytes import CHUNK


def byte_order(width: int) -> np.ndarray:
    """Return which rotated value lies in each byte of a row.

    >>> byte_order(256)[:9]
    array([  0,  32,  64,  96, 128, 160, 192, 224,   1])
    """
    chunks = [np.arange(first, min(first + CHUNK, width)) for first in range(0, width, CHUNK)]
    return np.concatenate([chunk.reshape(-1, 32).T.ravel() for chunk in chunks])
