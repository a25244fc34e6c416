"""expected_density: what share of its blocks a prompt of some length will read, predicted before any of it is read."""

from __future__ import annotations

from math import log

import numpy as np

from sp.ops.attention.key_blocks import BLOCK
from sp.ops.sparse.block_budget import BlockBudget
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity

ALPHAS = (0.0125, 0.025, 0.05, 0.1, 0.2)
BLOCKS = (60.5, 50.8, 36.2, 23.6, 13.3)
"""Blocks a query block keeps on average at these alphas: densities 23.6, 19.8, 14.1, 9.2 and 5.2 % of 64K tokens with
Qwen3-4B ("FlashPrefill v2", 2026, arXiv 2608.19758). From 16K to 128K tokens alpha 0.1 keeps 19 to 25."""


def expected_density(selector: FlashPrefill | TopDensity | BlockBudget, tokens: int) -> float:
    """Predicted share of the causal blocks that a selector lists for a prompt of `tokens` tokens. Exact for a set
    density and for numbers of blocks; of a share of the energy, the most it can be. A threshold keeps about as many
    blocks at any length; below the smallest alpha of the published table everything counts as read, above its largest
    as much as there.

    >>> [round(expected_density(FlashPrefill(0.1), n), 2) for n in (8192, 32768, 131072)]
    [0.64, 0.19, 0.05]
    >>> expected_density(FlashPrefill(0.0), 131072)
    1.0
    """
    rows = -(-tokens // BLOCK)
    if not rows:
        return 1.0
    seen = np.arange(1, rows + 1, dtype=np.float64)
    if isinstance(selector, TopDensity):
        chosen = np.ceil(selector.density * seen)
    elif isinstance(selector, BlockBudget):
        chosen = selector.expected(seen)
    elif selector.alpha < ALPHAS[0]:
        return 1.0
    else:
        wanted = np.interp(log(selector.alpha), np.log(ALPHAS), np.log(BLOCKS))
        chosen = np.full(rows, max(float(np.exp(wanted)), float(selector.min_budget)))
    chosen = np.minimum(np.maximum(chosen, selector.sink + selector.window), seen)
    if selector.last_n:
        chosen[-selector.last_n :] = seen[-selector.last_n :]
    return float(chosen.sum() / seen.sum())
