"""An orthonormal rotation that spreads outliers over a block before it is quantised."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sp.arrays import Doubles, Floats
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.attention_rows import ROTATE_ROWS, ROWS_A_BLOCK


@lru_cache(maxsize=8)
def sylvester(block: int) -> Floats:
    """Return the orthonormal Sylvester matrix, (block, block)."""
    matrix: Doubles = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rotation: Floats = (matrix / np.sqrt(block)).astype(np.float32)
    rotation.flags.writeable = False
    return rotation


def hadamard(x: Floats, block: int) -> Floats:
    """Multiply consecutive blocks of the last axis by the orthonormal Sylvester-Hadamard matrix.

    ``y[..., b] = H x[..., b]`` with ``H[i, j] = (-1) ** popcount(i & j) / sqrt(block)``. H is symmetric and its
    own inverse, so applying it twice returns `x`, and rotating both q and k leaves q·k unchanged.

    Parameters
    ----------
    x : float32 (..., d), on the device float16 (rows, heads, d)
    block : int
        A power of two that divides d; on the device 64 or d itself.

    Returns
    -------
    float32 (..., d), on the device float16

    Raises
    ------
    ConfigError
        If `block` is not a power of two or does not divide d.

    References
    ----------
    Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024; llama.cpp pull request 21038.

    Examples
    --------
    >>> hadamard(np.array([4.0, 0.0, 0.0, 0.0], np.float32), 4)
    array([2., 2., 2., 2.], dtype=float32)
    """
    if block < 1 or block & (block - 1) or x.shape[-1] % block:
        raise ConfigError(f"hadamard: block {block} must be a power of two that divides {x.shape[-1]}")
    y: Floats
    if is_device(x):
        y = import_cupy().empty(x.shape, np.float16)
        rows, heads, d = x.shape
        assert block in (64, d), f"rotation over {block} of {d}"
        defines = {"HEAD_DIM": d, "ROTATE": block}
        ROTATE_ROWS.launch((-(-rows * heads // ROWS_A_BLOCK),), x, y, rows * heads, defines=defines)
        return y
    y = x.reshape(-1, block) @ sylvester(block).astype(x.dtype, copy=False)
    return y.reshape(x.shape)
