"""Attention of a few query tokens over a long context: the raw material of every attention scorer.

A[h, n, j] = softmax_j( q[n, h] . k[j, h // group] / sqrt(head_dim) ),   j <= limit[n]"""

from __future__ import annotations

import numpy as np

from sp.arrays import Floats, Ints


def attention_probs(q: Floats, k: Floats, limit: Ints) -> Floats:
    """Softmax weights of `n` queries over `s` keys, exactly zero beyond each query's limit. Returns an array (heads, n,
    s), float32; each row sums to one.

    Parameters
    ----------
    q : array (n, heads, head_dim), queries, with rotary embedding already applied or deliberately left out
    k : array (s, kv_heads, head_dim), keys, treated the same way; `heads` is a multiple of `kv_heads`
    limit : array (n,), index of the last key each query may see

    Examples
    --------
    >>> q = np.ones((1, 2, 4), np.float32)
    >>> k = np.ones((3, 1, 4), np.float32)
    >>> attention_probs(q, k, np.array([1]))[0, 0].tolist()
    [0.5, 0.5, 0.0]
    """
    return softmax(attention_logits(q, k, limit))


def attention_logits(q: Floats, k: Floats, limit: Ints) -> Floats:
    """What `attention_probs` takes the softmax of, (heads, n, s): -inf beyond each query's limit."""
    n, heads, head_dim = q.shape
    s, kv_heads, _ = k.shape
    group = heads // kv_heads
    grouped = q.reshape(n, kv_heads, group, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, group * n, head_dim)
    scores: Floats = np.matmul(grouped, k.transpose(1, 2, 0))
    scores *= np.float32(1.0 / np.sqrt(head_dim))
    scores = scores.reshape(heads, n, s)
    scores[:, np.arange(s)[None, :] > limit[:, None]] = -np.inf
    return scores


def softmax(scores: Floats) -> Floats:
    """Softmax along the last axis, in the same memory."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
