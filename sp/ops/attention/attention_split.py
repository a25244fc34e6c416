"""Attention of up to some tens of queries over a long paged cache on the device, split over the cache (split-KV)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import (
    current_device,
    multiprocessors,
    registers_per_multiprocessor,
    shared_bytes_per_block,
    shared_bytes_per_multiprocessor,
)
from sp.kernels.launch import KernelSpec
from sp.kernels.specs.attention import attention_decode
from sp.kernels.specs.attention.attention_split import (
    ATTENTION_COMBINE,
    ATTENTION_SPLIT,
    KEYS,
    queries,
    ring_variant,
    variant,
)
from sp.kernels.specs.attention.page_rows import is_packed
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
    """Compute attention of the last `n` tokens of `at`, in launches whose grids do not depend on their number: all
    query rows of a KV head share its keys, and what the splits find is summed in the last launch.

    The NumPy reference is `sp.ops.attention.attention.attention_output`, and `paged_attention` without `finish`; with
    `seen` or a window `sp.ops.attention.tree_attention`.

    Parameters
    ----------
    q : cupy float16 (n, heads, d), in the basis of the cached keys, n at most 64
    at : PagedKV
        The length of its table bounds its tokens.
    finish : bool
        Run the epilogue: rotate outputs back and apply the gate of `wide`, bf16 (n, heads, 2 d), if there is one.
    seen : cupy uint64 (n,), optional
        Bit mask of the last n tokens that each query sees; by default itself and those before it.
    rule : ScoreRule, see `sp.ops.attention.tree_attention`
    tiles : InputTiles (n, heads * d), optional
        Receives the result instead of a bf16 array, and is returned.
    behind : int
        Tokens of `at` after the query tokens.
    out : cupy uint16 (n, heads, d), optional
        Receives the result, in place of a new array.

    Returns cupy uint16 (n, heads, d), bf16. Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    cupy = import_cupy()
    n, heads, head_dim = q.shape
    at.check_queries(q)
    kv_heads = at.kv_heads
    assert wide is None or wide.shape == (n, heads, 2 * head_dim), f"q {q.shape}, wide {wide.shape}"
    group, device, formats = heads // kv_heads, current_device(), rows_formats(at)
    window = rule.window or 0
    recent = {} if at.recent is None else {"RECENT": 1}
    defines = variant(head_dim, formats, n * group, is_roomy(device)) | recent
    blocks = -(-n * group // queries(defines))
    rows = blocks * queries(defines)
    groups = -(-n * group // attention_decode.GROUP_ROWS)
    few = (
        groups <= attention_decode.MOST_GROUPS
        and head_dim in attention_decode.HEAD_DIMS
        and is_packed(formats)
        and all(one is None for one in (rule.window, rule.reach, rule.softcap))
        and behind == 0
    )
    # One wave: no more blocks than the GPU runs at once, and no more splits than tiles of keys that may be seen.
    if few:
        assert rows == groups * attention_decode.GROUP_ROWS, f"{rows} rows, {groups} groups"
        packed = attention_decode.variant(head_dim, formats, n * group, is_roomy(device), at.recent is not None)
        # Blocks fill their multiprocessors, and those with exact rows are at work at the same time.
        at_once = resident_blocks(attention_decode.ATTENTION_DECODE, tuple(packed.items()), device)
        splits = (at_once - kv_heads * len(recent)) // (kv_heads * groups)
    else:
        splits = resident_blocks(ATTENTION_SPLIT, tuple(defines.items()), device) // (kv_heads * blocks)
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
    if few:
        attention_decode.ATTENTION_DECODE.launch(
            (splits, kv_heads, groups), q, at.k, at.v, at.table, *count, seen, partial, states, *shape, scale,
            defines=packed,
        )  # fmt: skip
    else:
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
def resident_blocks(kernel: KernelSpec, defines: tuple[tuple[str, int], ...], device: int) -> int:
    """Return the number of blocks of a variant that the device runs at once. One that does not say for how many its
    registers are meant may use as many as the compiler allows."""
    chosen = dict(defines)
    fit = shared_bytes_per_multiprocessor(device) // (kernel.shared_bytes(chosen) + 1024)
    most = chosen.get("BLOCKS", registers_per_multiprocessor(device) // (255 * kernel.block(chosen)))
    return multiprocessors(device) * max(1, min(fit, most))


@cache
def is_roomy(device: int) -> bool:
    """Return True if a block may have 224 KiB of shared memory."""
    return shared_bytes_per_block(device) >= 224 << 10
