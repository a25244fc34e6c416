"""likely_logits: a row of logits with -inf for tokens that are too unlikely beside the likeliest (min-p)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.likely_logits import LIKELY_LOGITS


def likely_logits(logits: Floats, best: Any, temperature: float, min_p: float) -> Any:
    """The same logits where ``softmax(logits / temperature)`` is at least `min_p` times its largest, -inf elsewhere.
    Returns float32 (1, vocab), where `logits` are. Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for
    Creative and Coherent LLM Outputs", 2024.

    Parameters
    ----------
    logits : float32 (1, vocab)
    best : int32 (1,), the likeliest token, where `logits` are
    temperature : float, above 0
    min_p : float, above 0, at most 1

    Examples
    --------
    >>> row = np.log(np.array([[0.5, 0.26, 0.24]], np.float32))
    >>> likely_logits(row, np.array([0], np.int32), 1.0, 0.5).tolist()[0][2]
    -inf
    """
    vocab, bound = logits.shape[1], np.float32(temperature * math.log(min_p))
    if is_device(logits):
        left = import_cupy().empty_like(logits)
        LIKELY_LOGITS.launch((-(-vocab // 256),), logits, best, left, vocab, bound)
        return left
    return np.where(logits >= logits[0, best[0]] + bound, logits, np.float32(-np.inf))
