"""round_e4m3: the nearest number of eight bits with four of exponent and three of fraction."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats

LARGEST = np.float32(448)


def round_e4m3(x: Floats) -> Floats:
    """The nearest e4m3 number, halves to even; numbers past 448 become 448.

    Parameters
    ----------
    x : float32

    Returns
    -------
    float32

    References
    ----------
    Micikevicius et al., "FP8 Formats for Deep Learning", 2022.

    Examples
    --------
    >>> round_e4m3(np.array([1.0, 1.06, 1.07, -500.0], np.float32)).tolist()
    [1.0, 1.0, 1.125, -448.0]
    """
    size = np.minimum(np.abs(x), LARGEST)
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)  # subnormals share the least one
    step = np.ldexp(np.float32(1), exponent - 3)
    rounded: Floats = np.copysign(np.rint(size / step) * step, x).astype(np.float32)
    return rounded
