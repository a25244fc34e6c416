"""draw_tokens and token_shares: sampling by given random numbers, for draws that others must be able to weigh."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.draw_tokens import DRAW_TOKENS, TOKEN_SHARES

BITS = 53  # of a random number in [0, 1), as NumPy draws them


def draw_tokens(logits: Floats, temperature: float, numbers: Doubles, less: Floats | None = None) -> Ints:
    """A token a row, each the first at which the running sum of weights passes its number's share of their total.
    Weights are ``p = softmax(logits / temperature)``, or with `less` ``max(p - q, 0)``, q being its softmax; where
    nothing is left of p, because both differ by rounding alone, p itself. All in float64. Returns int64 (n,), on the
    host. Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023 (the
    residual).

    Parameters
    ----------
    logits : float32 (n, vocab)
    temperature : float, above 0
    numbers : float64 (n,), in [0, 1), on the host
    less : float32 (n, vocab), optional

    Examples
    --------
    >>> rows = np.log(np.array([[0.5, 0.25, 0.25]] * 3, np.float32))
    >>> draw_tokens(rows, 1.0, np.array([0.1, 0.6, 0.9])).tolist()
    [0, 1, 2]
    >>> draw_tokens(rows[:1], 1.0, np.array([0.0]), less=np.log(np.array([[0.9, 0.05, 0.05]], np.float32))).tolist()
    [1]
    """
    if is_device(logits):
        return _drawn(logits, temperature, numbers, less)
    weights = softmax(logits, temperature)
    if less is not None:
        rest = np.maximum(weights - softmax(less, temperature), 0)
        weights = np.where(rest.any(axis=-1, keepdims=True), rest, weights)
    ends = weights.cumsum(axis=-1)
    found = [np.searchsorted(row, u * row[-1], side="right") for row, u in zip(ends, numbers, strict=True)]
    return np.array(found, np.int64)


def token_shares(logits: Floats, temperature: float, tokens: Ints) -> Doubles:
    """Probability of one token a row under ``softmax(logits / temperature)``. `logits`: float32 (n, vocab); `tokens`:
    int64 (n,), on the host. Returns float64 (n,), on the host.

    >>> token_shares(np.log(np.array([[0.5, 0.25, 0.25]], np.float32)), 1.0, np.array([2])).round(6).tolist()
    [0.25]
    """
    if is_device(logits):
        return _shares(logits, temperature, tokens)
    found: Doubles = softmax(logits, temperature)[np.arange(len(tokens)), tokens]
    return found


def softmax(logits: Floats, temperature: float) -> Doubles:
    """Probabilities of the last axis, in float64; on the CPU."""
    weights = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights /= np.float32(temperature)  # what the kernel is given
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    found: Doubles = weights
    return found


def _drawn(logits: Any, temperature: float, numbers: Doubles, less: Any) -> Ints:
    cupy, (rows, vocab) = import_cupy(), logits.shape
    assert numbers.shape == (rows,), f"{numbers.shape} numbers for {rows} rows"
    assert less is None or less.shape == logits.shape, f"{less.shape} from {logits.shape}"
    bits = cupy.asarray((numbers * 2.0**BITS).astype(np.uint64))
    tokens = cupy.empty(rows, np.int32)
    DRAW_TOKENS.launch((rows,), logits, less, bits, tokens, vocab, temperature)
    found: Ints = tokens.get().astype(np.int64)
    return found


def _shares(logits: Any, temperature: float, tokens: Ints) -> Doubles:
    cupy, (rows, vocab) = import_cupy(), logits.shape
    assert tokens.shape == (rows,), f"{tokens.shape} tokens for {rows} rows"
    shares = cupy.empty(rows, np.uint64)  # float64, whose bits the kernel writes
    TOKEN_SHARES.launch((rows,), logits, cupy.asarray(tokens, np.int32), shares, vocab, temperature)
    found: Doubles = shares.get().view(np.float64)
    return found
