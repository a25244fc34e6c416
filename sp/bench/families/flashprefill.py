"""One layer of a sparse prefill: choosing key blocks, attention over them, and both; for inputs see `clustered`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from sp.bench.cases import Case, family, paths
from sp.bench.families.attention import SHAPES
from sp.bench.families.inputs import clustered
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.paged_attention import prefill_attention
from sp.ops.sparse.block_lists import density
from sp.ops.sparse.block_means import block_means
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity, select_on_device
from sp.ops.sparse.sparse_attention import sparse_attention

TOKENS = 131072
SELECTORS = (
    FlashPrefill(0.1),
    TopDensity(0.05),
    replace(FlashPrefill(0.1), share="group", visibility="first", mean_correction=True),
)


@family("flashprefill")
def cases() -> Iterator[Case]:
    """128K tokens; `read` is the density. FLOP: with mean keys, and with visible keys and values of listed blocks."""
    for head_dim, heads, kv_heads in SHAPES:
        q, at = clustered(TOKENS, heads, kv_heads, head_dim)
        scale, means = head_dim**-0.5, block_means(at.k, at.table, TOKENS, at.fmt)
        for selector in SELECTORS:
            lists = select_on_device(selector, q, means, TOKENS, scale)
            counts = lists.counts.get().astype(np.int64)
            shape = {"head_dim": head_dim, "q_heads": heads, "kv_heads": kv_heads, "tokens": TOKENS, "kv": "f16"}
            options = {"selector": type(selector).__name__, **asdict(selector)}
            config: dict[str, Any] = {**shape, **options, "read": round(density(counts), 4)}
            scored, live = score_flops(TOKENS, heads, head_dim), live_flops(counts, head_dim)
            moved = q.nbytes + means.nbytes
            choose = partial(select_on_device, selector, q, means, TOKENS, scale)
            yield Case({**config, "stage": "select"}, "portable", choose, bytes=moved, flops=scored)
            for path in paths():
                attend = partial(prefill_attention, q, at, scale, lists)
                both = partial(sparse_attention, q, at, scale, selector)
                moved = 2 * q.nbytes + at.k.nbytes + at.v.nbytes
                yield Case({**config, "stage": "attend"}, path, attend, bytes=moved, flops=live)
                yield Case({**config, "stage": "layer"}, path, both, bytes=moved + q.nbytes, flops=live + scored)


def live_flops(counts: Any, head_dim: int) -> float:
    """Products of the queries with the keys and values they see in listed blocks; half of the diagonal block is seen.

    Parameters
    ----------
    counts : int64 (heads, query_blocks)
        Blocks listed, the diagonal's among them; all tokens are queries and fill their blocks.

    Examples
    --------
    >>> live_flops(np.array([[1, 2]]), 64) == 4 * 64 * (2 * (128 * 129 // 2) + 128 * 128)
    True
    """
    pairs = int(counts.sum()) * BLOCK * BLOCK - counts.size * BLOCK * (BLOCK - 1) // 2
    return float(4 * head_dim * pairs)


def score_flops(tokens: int, heads: int, head_dim: int) -> float:
    """Products of all queries with the mean keys of the blocks that begin no later.

    Examples
    --------
    >>> score_flops(256, 1, 64) == 2 * 64 * 128 * (1 + 2)
    True
    """
    blocks = tokens // BLOCK
    return 2.0 * heads * head_dim * BLOCK * (blocks * (blocks + 1) / 2)
