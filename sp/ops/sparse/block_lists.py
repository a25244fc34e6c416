"""Lists of key blocks for the prefill kernels, their conversion from and to masks, and their density."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sp.arrays import Bools, Ints
from sp.ops.attention.key_blocks import BLOCK, BlockLists


def candidates(n: int, tokens: int) -> Ints:
    """Return the number of blocks that the last row of each query block sees, entirely or in part: (query_blocks,).
    Query block ``i`` is rows ``128 i ..`` of the last `n` of `tokens` tokens.

    >>> candidates(300, 300).tolist(), candidates(200, 300).tolist()
    ([1, 2, 3], [2, 3])
    """
    ends = np.minimum(np.arange(BLOCK, n + BLOCK, BLOCK), n) + tokens - n
    return np.asarray(-(-ends // BLOCK), np.int64)


@lru_cache(256)
def possible(n: int, tokens: int) -> int:
    """Return the total of `candidates`; cached, because every layer of a prompt needs it.

    >>> possible(300, 300)
    6
    """
    return int(candidates(n, tokens).sum())


def causal(n: int, tokens: int) -> Bools:
    """Return the mask of blocks that start no later than the last row of a query block: (query_blocks, blocks)."""
    seen: Bools = np.arange(-(-tokens // BLOCK)) < candidates(n, tokens)[:, None]
    return seen


def forced(n: int, tokens: int, sink: int, window: int, last_n: int) -> Bools:
    """Return the mask of blocks that are always selected: the first, the nearest, and all for the last query blocks:
    (query_blocks, blocks).

    >>> forced(512, 512, sink=1, window=2, last_n=0).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]
    """
    seen = causal(n, tokens)
    rows, blocks = seen.shape
    j = np.arange(blocks)
    first = (tokens - n + BLOCK * np.arange(rows))[:, None] // BLOCK  # block of the first row
    near, last = j > first - window, np.arange(rows)[:, None] >= rows - last_n
    chosen: Bools = seen & ((j < sink) | near | last)
    return chosen


def lists_of(mask: Any, long_blocks: int = 0) -> BlockLists:
    """Convert a mask (heads, query_blocks, blocks), on the host or on the device, to lists; it must already be causal.

    >>> lists = lists_of(np.array([[[True, False, True]]]))
    >>> lists.counts.tolist(), lists.indices.tolist()
    ([[2]], [[[0, 2, 1]]])
    """
    order = (~mask).argsort(axis=2, kind="stable")
    counts, indices = (a.astype(np.int32) for a in (mask.sum(axis=2), order))
    return BlockLists(counts, indices, long_blocks)


def mask_of(lists: BlockLists, blocks: int) -> Bools:
    """Convert lists to a mask (heads, query_blocks, blocks) on the host."""
    counts, indices = (a if isinstance(a, np.ndarray) else a.get() for a in (lists.counts, lists.indices))
    mask = np.zeros((*counts.shape, blocks), bool)
    for place in np.ndindex(counts.shape):
        mask[place][indices[place][: counts[place]]] = True
    return mask


def density(counts: Any, n: int | None = None, tokens: int | None = None) -> float:
    """Return the listed share of the blocks that a causal mask allows; waits for the device. `counts`: int32 (heads,
    query_blocks); `n`, `tokens`: queries and tokens; by default all tokens are queries.

    >>> density(np.array([[1, 2, 2, 2]]))
    0.7
    """
    heads, rows = counts.shape
    n = rows * BLOCK if n is None else n
    possible = int(candidates(n, n if tokens is None else tokens).sum())
    listed = int(counts.sum())
    return listed / (int(heads) * possible)
