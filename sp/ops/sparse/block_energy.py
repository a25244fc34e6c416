"""The energy of each key block for a block of queries, estimated by the blocks' mean keys."""

from __future__ import annotations

import math

import numpy as np

from sp.arrays import Bools, Floats
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.threads import run_parallel

SMALLEST = np.float32(2.0**-126)  # a smaller energy counts as 0: the kernel's float32 may have flushed it


def block_energy(
    q: Floats, means: Floats, tokens: int, scale: float, together: int = 1, visibility: str = "last"
) -> Floats:
    """Sum the exponentials of the scores of a query block's rows, relative to one common maximum.

    ``s[i, J] = scale q[i] · means[J]``, ``M = max s`` over the rows ``i`` of the query block and the blocks they see,
    ``E[J] = sum_i exp(s[i, J] - M)``. This is not a softmax per row: rows with large scores dominate the block. Returns
    float32 (heads / together, query_blocks, blocks), 0 where no row sees a block; otherwise in (0, 128 together], or 0
    where it underflows. Source: Fan et al., "FlashPrefill", 2026 (``last``, one head); "FlashPrefill v2", 2026
    (``first``, the heads of a KV head).

    Parameters
    ----------
    q : float32 (n, heads, d), the last `n` of `tokens` tokens, in query blocks of 128
    means : float32 (kv_heads, blocks, d)
    together : int, neighbouring query heads whose rows form one set: 1, or all heads of a KV head
    visibility : {"last", "first"}, a row sees a block if the block's last, or its first, token is not after the row

    Examples
    --------
    >>> q, means = np.ones((129, 1, 1), np.float32), np.zeros((1, 2, 1), np.float32)
    >>> block_energy(q, means, 129, 1.0)[0].tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    n, heads, _ = q.shape
    kv_heads, blocks, _ = means.shape
    group, rows = heads // kv_heads, -(-n // BLOCK)
    assert together in (1, group), f"{together} heads together, {group} on a kv head"
    energy = np.zeros((heads // together, rows, blocks), q.dtype)
    factor = q.dtype.type(scale * math.log2(math.e))

    def one(place: tuple[int, int]) -> None:
        entry, i = place
        mine = q[BLOCK * i : BLOCK * (i + 1), entry * together : (entry + 1) * together]
        start = tokens - n + BLOCK * i
        # Blocks that begin no later than the last row of this query block.
        there = min(blocks, (start + len(mine) - 1) // BLOCK + 1)
        score = mine.reshape(len(mine) * together, -1) @ means[entry * together // group, :there].T
        score = (score * factor).reshape(len(mine), together, there)
        seen = _visible(len(mine), start, there, visibility)
        score = np.where(seen[:, None], score, q.dtype.type(-np.inf))
        top = score.max()  # -inf if no row sees a block; the energy then stays 0
        if top > -np.inf:
            score -= top
            energy[entry, i, :there] = exp2_normal(score).sum(axis=(0, 1))

    run_parallel(one, list(np.ndindex(energy.shape[:2])))
    return energy


def exp2_normal(x: Floats) -> Floats:
    """``2^x`` in place; 0 where it would be denormal, as on the device, because such numbers slow down a host.

    >>> exp2_normal(np.array([1, -126, -127, -np.inf], np.float32)).tolist() == [2.0, 2.0**-126, 0.0, 0.0]
    True
    """
    least = np.finfo(x.dtype).minexp
    normal = x >= least
    np.maximum(x, least, out=x)
    np.exp2(x, out=x)
    x *= normal
    return x


def _visible(rows: int, start: int, blocks: int, visibility: str) -> Bools:
    """Return the mask of blocks that the row at position ``start + i`` sees: (rows, blocks)."""
    first = np.arange(blocks) * BLOCK
    token = first + (BLOCK - 1 if visibility == "last" else 0)
    seen: Bools = token <= np.arange(start, start + rows)[:, None]
    return seen
