"""Attention of some tens of queries over a long paged cache on the device, split over the cache (split-KV)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors, shared_bytes_per_multiprocessor
from sp.kernels.specs.attention.attention_split import (
    ATTENTION_COMBINE,
    ATTENTION_SPLIT,
    KEYS,
    queries,
    ring_variant,
    variant,
)
from sp.ops.attention.attention_decode import is_roomy
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, rows_formats, split_count
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.input_tiles import InputTiles


def split(
    q: Any,
    at: PagedKV,
    *,
    finish: bool = False,
    wide: Any = None,
    seen: Any = None,
    rule: ScoreRule = PLAIN,
    tiles: InputTiles | None = None,
    behind: int = 0,
    out: Any = None,
) -> Any:
    """Compute attention of the last `n` tokens of `at`, in two launches whose grids do not depend on their number.

    For more query rows than `sp.ops.attention.attention_decode.decode` takes at once, and for masks: all rows of a kv
    head share its keys, 64 at a time. Parameters and result are that function's. With `seen` or a window, the NumPy
    reference is `sp.ops.attention.tree_attention`.

    `seen`: cupy uint64 (n,), optional, bit mask of the last n tokens that each query sees; by default itself and those
    before it; `rule`: see `sp.ops.attention.tree_attention`; `tiles`: InputTiles (n, heads * d), optional, receives the
    result instead of a BF16 array, and is returned; `behind`: tokens of `at` after the query tokens; `out`: receives
    the result, in place of a new array.
    """
    cupy = import_cupy()
    n, heads, head_dim = q.shape
    at.check_queries(q)
    kv_heads = at.kv_heads
    assert wide is None or wide.shape == (n, heads, 2 * head_dim), f"q {q.shape}, wide {wide.shape}"
    group, device = heads // kv_heads, current_device()
    window = rule.window or 0
    recent = {} if at.recent is None else {"RECENT": 1}
    defines = variant(head_dim, rows_formats(at), n * group, is_roomy(device)) | recent
    blocks = -(-n * group // queries(defines))
    rows = blocks * queries(defines)
    # One wave: no more blocks than the GPU runs at once, and no more splits than tiles of keys that may be seen.
    splits = resident_blocks(tuple(defines.items()), device) // (kv_heads * blocks)
    most = len(at.table) * PAGE_TOKENS if rule.window is None else rule.window + n + KEYS
    splits = max(1, min(splits, most // KEYS))
    parts = splits + len(recent)  # the exact rows of the newest tokens are a part of their own
    partial = cupy.empty((kv_heads, parts, rows, head_dim), np.float16)
    states = cupy.empty((kv_heads, parts, rows, 2), np.float32)
    if out is None and tiles is None:
        out = cupy.empty((n, heads, head_dim), np.uint16)
    # The count may be on the device, so that a captured graph stays valid while the cache grows.
    stored, more = split_count(at.count)
    count = stored, more - behind
    shape = n, heads, kv_heads
    # The kernel's exponentials are in base 2.
    scale = float(np.log2(np.e)) * (rule.scale or head_dim**-0.5)
    asked = *count, seen, window, partial, states, *shape, scale, rule.cap, rule.reach, parts
    if at.recent is not None:
        assert behind == 0, "the ring ends behind the last token"
        ring = at.recent.ring(at)
        ATTENTION_SPLIT.launch(
            (1, kv_heads, blocks), q, ring.k, ring.v, ring.table, len(ring.table), *asked,
            defines=ring_variant(defines) | rule.defines("SOFTCAP"),
        )  # fmt: skip
    ATTENTION_SPLIT.launch(
        (splits, kv_heads, blocks), q, at.k, at.v, at.table, len(at.table), *asked,
        defines=defines | rule.defines("SOFTCAP"),
    )  # fmt: skip
    ATTENTION_COMBINE.launch(
        (n * heads,),
        partial,
        states,
        wide,
        out,
        None if tiles is None else tiles.data,
        0 if tiles is None else tiles.held,
        *count,
        window,
        parts,
        rows,
        *shape,
        rule.sinks,
        rule.reach,
        defines={"HEAD_DIM": head_dim, "ROTATE": int(at.rotated), "FINISH": int(finish)}
        | rule.defines("SINKS")
        | recent,
    )
    return out if tiles is None else tiles


@cache
def resident_blocks(defines: tuple[tuple[str, int], ...], device: int) -> int:
    """Return the number of blocks of a variant of `ATTENTION_SPLIT` that the device runs at once."""
    chosen = dict(defines)
    fit = shared_bytes_per_multiprocessor(device) // (ATTENTION_SPLIT.shared_bytes(chosen) + 1024)
    return multiprocessors(device) * max(1, min(fit, chosen["BLOCKS"]))
