"""Causal attention over lists of key blocks in NumPy, optionally with the means of the omitted blocks."""

from __future__ import annotations

import math

import numpy as np

from sp.arrays import Floats
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.score_rule import PLAIN, ScoreRule, soft_capped
from sp.ops.sparse.block_energy import exp2_normal
from sp.ops.threads import run_parallel


def block_sparse(
    q: Floats,
    k: Floats,
    v: Floats,
    lists: BlockLists,
    scale: float,
    means: tuple[Floats, Floats] | None = None,
    rule: ScoreRule = PLAIN,
) -> Floats:
    """Compute attention of the last queries over the listed blocks, without keys after a row. With `means` every block
    that is not listed, and that all rows of the query block see entirely, adds ``128 exp(scale q · mean key)`` to the
    sum of weights, and that times its mean value to the output: the zeroth-order approximation of its contribution.
    Returns float32 (n, heads, d), zeros for a row that sees no key. Source: Fan et al., "FlashPrefill v2", 2026 (the
    correction).

    Parameters
    ----------
    q : float32 (n, heads, d)
    k, v : float32 (tokens, kv_heads, d)
    lists : BlockLists, on the host
    means : tuple of float32 (kv_heads, blocks, d), optional, mean keys and values, see `sp.ops.sparse.block_means`
    rule : ScoreRule, of which softcap and sinks are used
    """
    n, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    group = heads // kv_heads
    out = np.zeros_like(q)
    factor = q.dtype.type(scale * math.log2(math.e))
    cap = None if rule.softcap is None else rule.softcap * math.log2(math.e)

    def one(place: tuple[int, int]) -> None:
        head, i = place
        rows = slice(BLOCK * i, min(BLOCK * (i + 1), n))
        start = tokens - n + rows.start
        listed = lists.indices[place][: lists.counts[place]].astype(np.int64)
        keys = (listed[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        keys = keys[keys < tokens]
        query = q[rows, head] * factor
        score = query @ k[keys, head // group].T
        if cap is not None:
            soft_capped(score, cap)
        values = v[keys, head // group]
        # Causal; a listed block may reach beyond a row.
        score[keys > np.arange(start, start + len(score))[:, None]] = -np.inf
        if means is not None:
            # Blocks that end before the first row: all rows see them entirely.
            left_out = np.setdiff1d(np.arange((start + 1) // BLOCK), listed)
            mean_key, mean_value = (m[head // group, left_out] for m in means)
            # 128 keys at their mean: a factor of 128, in base 2 a term of the score.
            score = np.hstack([score, query @ mean_key.T + q.dtype.type(math.log2(BLOCK))])
            values = np.vstack([values, mean_value])
        if not score.shape[1]:
            return
        top = score.max(axis=1, keepdims=True)
        # A row without keys has only -inf, and -inf - -inf would be NaN.
        top = np.where(np.isinf(top), 0, top)
        score -= top
        weight = exp2_normal(score)
        total = weight.sum(axis=1, keepdims=True)
        if rule.sinks is not None:
            total += np.exp2(rule.sinks[head] * q.dtype.type(math.log2(math.e)) - top)
        out[rows, head] = weight @ values / np.where(total > 0, total, 1)

    run_parallel(one, list(np.ndindex(lists.counts.shape)))
    return out
