"""Queries and mean keys whose energies tie exactly, so that FlashPrefill's threshold is met and not merely passed."""

from __future__ import annotations

import numpy as np

BLOCK = 128


def tied_blocks(d: int = 128, blocks: int = 70) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Queries (n, 2, d) and mean keys (1, blocks, d) in float16, tokens, and the lists at alpha 1 without sinks.

    Every query scores every other block 0 and the rest far below. A sum of ones is exact in any order, so all even
    blocks that a whole block of queries sees have the very same, largest energy.

    Returns
    -------
    tuple
        The last is a boolean (1, query_blocks, blocks): even blocks, and of the diagonal the forced one.
    """
    n, tokens = 2 * BLOCK, blocks * BLOCK
    q, means = np.zeros((n, 2, d), np.float16), np.zeros((1, blocks, d), np.float16)
    q[..., 0], means[:, 1::2, 0] = 8, -8
    diagonal = np.arange(blocks - 2, blocks)[:, None]
    block = np.arange(blocks)[None]
    return q, means, tokens, ((block % 2 == 0) & (block < diagonal) | (block == diagonal))[None]
