"""Scale logits and softly cap them, the last step of some models."""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats
from sp.kernels import is_device
from sp.kernels.specs.cap_logits import CAP_LOGITS, CAP_THREADS, EACH


def cap_logits(logits: Floats, scale: float, cap: float | None) -> Floats:
    """``x scale``, or ``cap tanh(x scale / cap)``, in place; returns `logits`.

    Parameters
    ----------
    logits : float32, contiguous
    scale : float
    cap : float, optional, above 0

    Examples
    --------
    >>> cap_logits(np.array([0.0, 1e9, -1e9], np.float32), 0.5, 30.0)
    array([  0.,  30., -30.], dtype=float32)
    """
    if is_device(logits):
        assert logits.flags.c_contiguous, f"logits {logits.shape} with gaps"
        how = (0.0, scale) if cap is None else (cap, scale / cap)
        CAP_LOGITS.launch((-(-logits.size // (CAP_THREADS * EACH)),), logits, logits.size, *how)
        return logits
    logits *= np.float32(scale if cap is None else scale / cap)
    if cap is not None:
        np.tanh(logits, out=logits)
        logits *= np.float32(cap)
    return logits
