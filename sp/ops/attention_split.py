"""split: attention of some tens of queries over a long paged cache on the device, split over the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.declared.attention_portable import (
    ATTENTION_COMBINE,
    ATTENTION_SPLIT,
    COMBINE_ROWS,
    SHORTEST_SPLIT,
    queries,
    variant,
)
from sp.kernels.device import current_device
from sp.ops.attention_decode import resident_blocks
from sp.ops.kv_pages import PAGE_TOKENS, is_packed, page_head_dim, split_count
from sp.quant import BlockFormat


def split(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    tokens: Any,
    fmt: BlockFormat,
    *,
    rotate: bool = False,
    finish: bool = False,
    wide: Any = None,
) -> Any:
    """Attention of the last `n` of `tokens` tokens, in two launches whose grids do not depend on `tokens`.

    For more query rows than `sp.ops.attention_decode.decode` takes at once: the rows of all heads of a group share
    tiles of 64 or 128 rows. Parameters and result are that function's, but `q` is in the basis of the cached keys.
    """
    cupy = import_cupy()
    n, heads, head_dim = q.shape
    kv_heads = k_pages.shape[2]
    assert page_head_dim(k_pages, fmt) == head_dim, f"q {q.shape}, pages {k_pages.shape}"
    assert k_pages.shape == v_pages.shape, f"{k_pages.shape}, {v_pages.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert wide is None or wide.shape == (n, heads, 2 * head_dim), f"q {q.shape}, wide {wide.shape}"
    defines = variant(head_dim, is_packed(fmt), split=True)
    tiles = -(-n * (heads // kv_heads) // queries(defines))
    rows = tiles * queries(defines)
    blocks = resident_blocks(ATTENTION_SPLIT, tuple(defines.items()), current_device())
    splits = max(1, min(blocks // (kv_heads * tiles), -(-len(table) * PAGE_TOKENS // SHORTEST_SPLIT)))
    partial = cupy.empty(kv_heads * splits * rows * (head_dim + 2), np.float32)
    out = cupy.empty((n, heads, head_dim), np.uint16)
    tokens_at, more = split_count(tokens)
    scale = float(np.log2(np.e) / np.sqrt(head_dim))
    shape = n, heads, kv_heads
    ATTENTION_SPLIT.launch(
        (splits, kv_heads, tiles),
        q,
        k_pages,
        v_pages,
        table,
        tokens_at,
        more,
        partial,
        *shape,
        scale,
        defines=defines,
    )
    ATTENTION_COMBINE.launch(
        (-(-n * heads // COMBINE_ROWS),),
        partial,
        wide,
        out,
        tokens_at,
        more,
        splits,
        rows,
        *shape,
        defines={"HEAD_DIM": head_dim, "ROTATE": int(rotate), "FINISH": int(finish)},
    )
    return out
