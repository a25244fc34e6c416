"""Predict the share of its blocks that a prompt of some length will attend to, before any of it is processed."""

from __future__ import annotations

from math import log

import numpy as np

from sp.ops.attention.key_blocks import BLOCK
from sp.ops.sparse.block_budget import BlockBudget
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity

ALPHAS = (0.0125, 0.025, 0.05, 0.1, 0.2)
BLOCKS = (60.5, 50.8, 36.2, 23.6, 13.3)
"""Average number of blocks per query block at these alphas: densities 23.6, 19.8, 14.1, 9.2 and 5.2 % of 64K tokens
with Qwen3-4B ("FlashPrefill v2", 2026, arXiv 2608.19758). From 16K to 128K tokens alpha 0.1 selects 19 to 25."""


def expected_density(selector: FlashPrefill | TopDensity | BlockBudget, tokens: int) -> float:
    """Return the predicted share of the causal blocks that a selector lists for a prompt of `tokens` tokens. Exact for
    a fixed density and for numbers of blocks; an upper bound for a share of the energy. A threshold selects about the
    same number of blocks at any length; below the smallest alpha of the published table all blocks count, above the
    largest as many as there.

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
