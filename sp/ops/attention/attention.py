"""attention: exact causal softmax attention, tiled, with an online softmax."""

from __future__ import annotations

import math

import numpy as np

from sp.arrays import Floats
from sp.ops.threads import run_parallel

QUERY_ROWS = 1024  # most score rows of a tile: query tokens times the query heads that share a kv head
TILE_SCORES = 1024 * 512  # most scores of a tile: 2 MiB, which stay in cache between the passes
KEY_TOKENS = 512  # fewest keys of a tile; with few queries, as in decoding, a tile takes more
HEADROOM = 64.0  # a score may pass its row's reference by 2**64 before the accumulator is rescaled


def attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """Causal attention of the last queries of a sequence over all its keys.

    ``out[i, h] = sum_j softmax_j( q[i, h] · k[j, h // group] / sqrt(d) ) v[j, h // group]`` over keys
    ``j <= kv_tokens - n + i``: the queries are the last `n` tokens, so query ``n - 1`` sees every key.
    ``group = heads / kv_heads`` (grouped-query attention).

    Scores live one tile at a time; memory beside the output does not grow with the sequence, and tiles that lie wholly
    above the diagonal are never computed. Scores are kept relative to a row reference (the row maximum of the first
    tile) which moves only when a later score passes it by 2**64: float32 holds the sums until then, and most tiles need
    no row maximum and no rescaling. Returns float32 (n, heads, d). Source: Dao et al., "FlashAttention", 2022 (online
    softmax); lazy rescaling as in FlashAttention-4.

    Parameters
    ----------
    q : float32 (n, heads, d), rotated queries, not yet scaled
    k, v : float32 (kv_tokens, kv_heads, d), ``kv_tokens >= n``; ``heads % kv_heads == 0``

    Examples
    --------
    >>> v = np.array([[[1.0]], [[3.0]]], np.float32)
    >>> attention(np.zeros((2, 1, 1), np.float32), v, v).ravel().tolist()
    [1.0, 2.0]
    """
    n, heads, d = q.shape
    kv_tokens, kv_heads, _ = k.shape
    assert k.shape == v.shape == (kv_tokens, kv_heads, d), f"q {q.shape}, k {k.shape}, v {v.shape}"
    assert kv_tokens >= n, f"{n} queries, {kv_tokens} keys"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    group = heads // kv_heads
    out = np.empty_like(q)
    step = max(1, QUERY_ROWS // group)

    def attend(tile: tuple[int, int]) -> None:
        kv_head, start = tile
        mine, stop = slice(kv_head * group, (kv_head + 1) * group), min(start + step, n)
        seen = kv_tokens - n + stop  # keys the last query of this tile sees
        out[start:stop, mine] = _query_tile(q[start:stop, mine], k[:seen, kv_head], v[:seen, kv_head])

    # Longest rows first, so that no core is left with a long tile at the end.
    starts = range(0, n, step)[::-1]
    run_parallel(attend, [(kv_head, start) for start in starts for kv_head in range(kv_heads)])
    return out


def _query_tile(q: Floats, k: Floats, v: Floats) -> Floats:
    """Attention of q (tokens, group, d), the last tokens of k, v (seen, d), over one kv head."""
    tokens, group, d = q.shape
    rows, first = tokens * group, len(k) - tokens
    # Base 2 and the 1/sqrt(d) folded into q: one multiply a query instead of one a score.
    q = (q * q.dtype.type(math.log2(math.e) / math.sqrt(d))).reshape(rows, d)
    reference = total = np.empty((rows, 1), q.dtype)
    out = np.empty((rows, d), q.dtype)
    step = min(max(KEY_TOKENS, TILE_SCORES // rows), len(k))
    scratch = np.empty(rows * step, q.dtype)
    for start in range(0, len(k), step):
        keys = slice(start, min(start + step, len(k)))
        width = keys.stop - start
        score = np.matmul(q, k[keys].T, out=scratch[: rows * width].reshape(rows, width))
        if keys.stop - 1 > first:
            _mask(score.reshape(tokens, group, width), first - start)
        if start == 0:
            reference = score.max(axis=1, keepdims=True)
            score -= reference
        else:
            score -= reference
            if score.max() > HEADROOM:
                rise = np.maximum(score.max(axis=1, keepdims=True), 0)
                score -= rise
                reference += rise
                out *= np.exp2(-rise)
                total *= np.exp2(-rise)
        weight = np.exp2(score, out=score)
        if start == 0:
            total = weight.sum(axis=1, keepdims=True)
            np.matmul(weight, v[keys], out=out)
        else:
            total += weight.sum(axis=1, keepdims=True)
            out += weight @ v[keys]
    out /= total
    return out.reshape(tokens, group, d)


def _mask(score: Floats, diagonal: int) -> None:
    """Set scores (tokens, group, keys) of keys past ``diagonal + token`` to -inf."""
    tokens, _, width = score.shape
    future = np.arange(width) > np.arange(diagonal, diagonal + tokens)[:, None]
    score += np.where(future, -np.inf, 0.0).astype(score.dtype)[:, None]
