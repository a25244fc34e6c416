"""allowed_logits: a row of logits with -inf for the tokens that may not come next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.allowed_logits import ALLOWED_LOGITS

Words = npt.NDArray[np.uint32]  # a bit for each token, the lowest bit of the first word first; 1 allows it


def allowed_logits(logits: Floats, words: Words) -> Any:
    """The same logits where the bit of a token is set, -inf elsewhere. Returns float32 (1, vocab), where `logits` are.

    Parameters
    ----------
    logits : float32 (1, vocab)
    words : uint32 (m,), on the host; tokens behind its last bit, by which a model's head may be padded, are not allowed

    Examples
    --------
    >>> allowed_logits(np.array([[1.0, 2.0, 3.0]], np.float32), np.array([0b101], np.uint32)).tolist()
    [[1.0, -inf, 3.0]]
    """
    vocab = logits.shape[1]
    wanted = -(-vocab // 32)
    words = np.pad(words[:wanted], (0, max(0, wanted - len(words))))
    if is_device(logits):
        cupy = import_cupy()
        left = cupy.empty_like(logits)
        ALLOWED_LOGITS.launch((-(-vocab // 256),), logits, cupy.asarray(words), left, vocab)
        return left
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[:vocab].astype(bool)
    return np.where(bits, logits, np.float32(-np.inf))
