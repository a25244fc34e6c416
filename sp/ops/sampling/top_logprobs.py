"""top_logprobs: the likeliest tokens of each row of logits, and the logarithms of their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.sample import MOST_SLICES, SLICE, TOP_LOGPROBS
from sp.ops.sampling.sample import MOST_ROWS, arrivals

MOST = 16  # tokens of a row on the device


def top_logprobs(logits: Floats, k: int) -> tuple[Any, Any]:
    """The `k` best tokens of each row and their log-softmax, best first, the lowest id first among equals. Returns
    `tokens`: int32 (n, k); `log_probs`: float32 (n, k), on the device where `logits` is; nothing waits for them.

    Parameters
    ----------
    logits : float32 (n, vocab), at most 64 rows on the device
    k : int, 1 to 16 on the device, at most `vocab`

    Examples
    --------
    >>> tokens, log_probs = top_logprobs(np.log(np.array([[0.2, 0.3, 0.2, 0.3]], np.float32)), 3)
    >>> tokens.tolist(), np.exp(log_probs.astype(float)).round(3).tolist()
    ([[1, 3, 0]], [[0.3, 0.3, 0.2]])
    """
    assert 1 <= k <= (min(MOST, logits.shape[1]) if is_device(logits) else logits.shape[1]), f"{k} of {logits.shape}"
    if is_device(logits):
        return _on_device(logits, k)
    tokens = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return tokens.astype(np.int32), np.take_along_axis(shifted, tokens, axis=-1).astype(np.float32)


def _on_device(logits: Any, k: int) -> tuple[Any, Any]:
    cupy = import_cupy()
    rows, vocab = logits.shape
    slices = -(-vocab // SLICE)
    assert 1 <= rows <= MOST_ROWS, f"{rows} rows of logits; 1 to {MOST_ROWS} fit"
    assert slices <= MOST_SLICES, f"{vocab} logits a row; {MOST_SLICES * SLICE} fit"
    tokens, log_probs = cupy.empty((rows, k), np.int32), cupy.empty((rows, k), np.float32)
    candidates, sums = cupy.empty((rows, slices, k), np.uint64), cupy.empty((rows, slices, 2), np.float32)
    scratch = candidates, sums, arrivals(current_device())[:rows]
    TOP_LOGPROBS.launch((slices, rows), logits, *scratch, tokens, log_probs, vocab, k)
    return tokens, log_probs
