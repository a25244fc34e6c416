"""Exact softmax attention under any mask, for the few queries of a draft block or a token tree."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bools, Floats
from sp.ops.attention.score_rule import PLAIN, ScoreRule, soft_capped
from sp.ops.threads import run_parallel


def masked_attention(q: Floats, k: Floats, v: Floats, visible: Bools, rule: ScoreRule = PLAIN) -> Floats:
    """Compute attention of few queries, each over the keys in its row of a mask.
    ``out[i, h] = sum_j softmax_j( q[i, h] · k[j, h // group] / sqrt(d) ) v[j, h // group]`` over keys with
    ``visible[i, j]``, and ``group = heads / kv_heads``; `rule` applies except its window, which the mask replaces. All
    scores are in memory at once: `attention` is for long runs. Returns float32 (n, heads, d).

    Parameters
    ----------
    q : float32 (n, heads, d), rotated queries, not yet scaled
    k, v : float32 (keys, kv_heads, d), ``heads % kv_heads == 0``
    visible : bool (n, keys), every query must see a key

    Examples
    --------
    >>> v = np.array([[[1.0]], [[3.0]]], np.float32)
    >>> masked_attention(np.zeros((2, 1, 1), np.float32), v, v, np.array([[True, True], [False, True]])).ravel()
    array([2., 3.], dtype=float32)
    """
    n, heads, d = q.shape
    keys, kv_heads, _ = k.shape
    assert k.shape == v.shape == (keys, kv_heads, d), f"q {q.shape}, k {k.shape}, v {v.shape}"
    assert visible.shape == (n, keys), f"mask {visible.shape} for {n} queries and {keys} keys"
    assert visible.any(axis=1).all(), "a query sees no key"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    group = heads // kv_heads
    # Added to scores: -inf hides a key. The new axis broadcasts over the heads of a group.
    hidden = np.where(visible, 0.0, -np.inf).astype(q.dtype)[:, None]
    q = q * q.dtype.type(rule.scale or d**-0.5)
    out = np.empty_like(q)

    def attend(kv_head: int) -> None:
        mine = slice(kv_head * group, (kv_head + 1) * group)
        score = (q[:, mine].reshape(n * group, d) @ k[:, kv_head].T).reshape(n, group, keys)
        if rule.softcap is not None:
            soft_capped(score, rule.softcap)
        score += hidden
        highest = score.max(axis=-1, keepdims=True)
        score -= highest
        weight = np.exp(score, out=score)
        total = weight.sum(axis=-1, keepdims=True)
        if rule.sinks is not None:
            total += np.exp(np.asarray(rule.sinks[mine], q.dtype)[:, None] - highest)
        weight /= total
        out[:, mine] = (weight.reshape(n * group, keys) @ v[:, kv_head]).reshape(n, group, d)

    run_parallel(attend, range(kv_heads))
    return out
