"""FP8 (e4m3) numbers: rounding to the nearest one, and a fast approximation of 2 to a power."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats

LARGEST = np.float32(448)
LAST = 126  # bits of `LARGEST`; 127 is NaN
NUMBERS: Floats = np.where(
    np.arange(LAST + 1) < 8,
    np.ldexp(np.arange(LAST + 1), -9),
    np.ldexp(8 + np.arange(LAST + 1) % 8, np.arange(LAST + 1) // 8 - 10),
).astype(np.float32)  # the non-negative numbers, by their bits


def round_e4m3(x: Floats) -> Floats:
    """Round to the nearest e4m3 number, halves to even; numbers beyond 448 become 448. `x`: float32. Returns float32.
    Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.

    >>> round_e4m3(np.array([1.0, 1.06, 1.07, -500.0], np.float32)).tolist()
    [1.0, 1.0, 1.125, -448.0]
    """
    size = np.minimum(np.abs(x), LARGEST)
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)  # subnormals share the smallest exponent
    step = np.ldexp(np.float32(1), exponent - 3)
    rounded: Floats = np.copysign(np.rint(size / step) * step, x).astype(np.float32)
    return rounded


def near_exp2(y: Floats) -> Floats:
    """Approximate 2 to `y` by an e4m3 number, without computing a power: the one whose bits are the rounded 8 (7 + y),
    at least 0, of (7 + y) / 16 in float16. Those bits, as an integer, are 8 (7 + log2) of the number, except for up to
    0.7 in the middle of an octave. So the error is at most 12.5 % from 2 to the -6 up to 448, and below 2 to the -7 the
    result is 0. `y`: float32, clipped to 8.75; minus infinity yields 0. Returns float32. Source: Schraudolph, "A fast,
    compact approximation of the exponential function", 1999.

    >>> near_exp2(np.array([0.0, 0.5, 1.0, 6.3, -8.0, -np.inf], np.float32)).tolist()
    [1.0, 1.5, 2.0, 80.0, 0.0, 0.0]
    """
    shares = np.clip((y + 7) / 16, 0, 1).astype(np.float16)
    bits = np.minimum(np.rint(128 * shares.astype(np.float32)), LAST).astype(np.int64)
    found: Floats = NUMBERS[bits]
    return found
