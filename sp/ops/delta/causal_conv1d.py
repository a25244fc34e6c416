"""A short depthwise convolution over time, with its history carried between calls."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.ops.activations import silu
from sp.ops.threads import run_parallel

SLAB_TOKENS = 32  # tokens processed at once, so that the passes over them stay in cache


def causal_conv1d(x: Floats, weight: Floats, state: Floats) -> tuple[Floats, Floats]:
    """Convolve each channel with its own taps, then apply SiLU.

    ``y[t, c] = silu( sum_j weight[c, j] * u[t - (taps - 1) + j, c] )`` where `u` is `state` followed by `x`:
    the last tap multiplies the current token.

    Parameters
    ----------
    x : float32 (tokens, channels)
    weight : float32 (channels, taps)
    state : float32 (taps - 1, channels)
        The inputs just before `x`, oldest first; zeros at the start of a sequence.

    Returns
    -------
    y : float32 (tokens, channels)
    state : float32 (taps - 1, channels)
        The last inputs (before convolution) of ``state`` and ``x``, for the next call.

    References
    ----------
    Dao and Gu's causal-conv1d; used before the Gated DeltaNet recurrence.

    Examples
    --------
    >>> x = np.array([[1.0], [2.0]], np.float32)
    >>> y, state = causal_conv1d(x, np.array([[0.0, 100.0]], np.float32), np.zeros((1, 1), np.float32))
    >>> y.ravel().tolist(), state.tolist()
    ([100.0, 200.0], [[2.0]])
    """
    taps = weight.shape[1]
    assert state.shape == (taps - 1, x.shape[1]), f"state {state.shape}, taps {taps}, x {x.shape}"
    inputs = np.concatenate([state, x])
    by_tap = np.ascontiguousarray(weight.T)  # (taps, channels)
    y = np.empty_like(x)

    def convolve(start: int) -> None:
        part = y[start : start + SLAB_TOKENS]
        total = np.zeros_like(part)
        for tap in range(taps):
            total += inputs[start + tap : start + tap + len(part)] * by_tap[tap]
        part[...] = silu(total)

    run_parallel(convolve, range(0, len(x), SLAB_TOKENS))
    return y, inputs[len(x) :].copy()
