"""Exclude padding from the state of a Gated DeltaNet layer.

A pass of a fixed size is padded after its tokens. Attention ignores the padding, but a recurrence is updated by every
token: so the padding's gates are set neither to decay nor to write, and the inputs that the convolution remembers are
those of the last real tokens."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import is_device
from sp.kernels.specs.delta_padding import HIDE_PADDING, KEEP_TAPS, THREADS

HIDDEN = np.float32(-1e30)
"""A gate at which a token has no effect: ``exp(a softplus(HIDDEN + bias)) = 1`` and ``sigmoid(HIDDEN) = 0``."""


def hide_padding(alpha: Floats, beta: Floats, real: Ints) -> None:
    """Close both gates of all tokens except the first ``real[0]``, in place. `alpha`, `beta`: float32 (tokens,
    value_heads), as in `delta_mixer`; the padding's other values must be finite; `real`: int32 (1,), on the same
    device; at most tokens.

    >>> alpha, beta = np.ones((2, 3, 1), np.float32)
    >>> hide_padding(alpha, beta, np.array([2]))
    >>> alpha.ravel().tolist() == beta.ravel().tolist() == [1, 1, HIDDEN]
    True
    """
    assert alpha.shape == beta.shape, f"alpha {alpha.shape}, beta {beta.shape}"
    if is_device(alpha):
        HIDE_PADDING.launch((-(-alpha.size // THREADS),), alpha, beta, real, *alpha.shape)
        return
    alpha[int(real[0]) :] = beta[int(real[0]) :] = HIDDEN


def keep_taps(x: Floats, conv: Floats, real: Ints) -> None:
    """Set the inputs that a convolution remembers to the last ones before the padding, in place. `x`: float32 (tokens,
    channels), on the device bf16 (uint16), inputs of the convolution, which has processed them; `conv`: float32 (taps -
    1, channels), its memory, oldest first; on the device 4 taps; `real`: int32 (1,), on the same device; at least taps
    - 1 and at most tokens.

    >>> conv = np.zeros((1, 2), np.float32)
    >>> keep_taps(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32), conv, np.array([2]))
    >>> conv.tolist()
    [[3.0, 4.0]]
    """
    assert x.shape[1] == conv.shape[1], f"x {x.shape}, conv {conv.shape}"
    if is_device(x):
        assert len(conv) == 3, f"{len(conv) + 1} taps"
        KEEP_TAPS.launch((-(-conv.size // THREADS),), x, conv, real, conv.shape[1])
        return
    conv[...] = x[int(real[0]) - len(conv) : int(real[0])]
