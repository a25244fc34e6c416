"""decode: attention of few queries over a long paged cache on the device, split over the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.declared.attention_decode import ATTENTION_DECODE, state_floats, variant
from sp.kernels.device import current_device
from sp.ops.kv_pages import is_packed, page_head_dim, split_count
from sp.quant import BlockFormat


def decode(
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
    """Attention of the last `n` of `tokens` tokens, in one launch whose grid does not depend on `tokens`.

    The twin is `sp.ops.paged_attention.attention_output`, and `paged_attention` where not `finish`.

    Parameters
    ----------
    q : cupy float16 (n, heads, d)
        Not rotated by the Hadamard matrix yet.
    k_pages, v_pages : cupy uint8 (pool_pages, 128, kv_heads, row_bytes)
    table : cupy int32 (blocks,)
        Its length bounds `tokens`.
    tokens : int or cupy int32 (1,)
    fmt : BlockFormat
        F16 or Q4_0.
    rotate : bool
        Whether keys and values are cached rotated. Needs Q4_0.
    finish : bool
        Rotate outputs back and apply the gate of `wide`, bf16 (n, heads, 2 d), if there is one.

    Returns
    -------
    cupy uint16 (n, heads, d)
        bf16.

    References
    ----------
    Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    cupy = import_cupy()
    n, heads, head_dim = q.shape
    kv_heads, packed = k_pages.shape[2], is_packed(fmt)
    assert page_head_dim(k_pages, fmt) == head_dim, f"q {q.shape}, pages {k_pages.shape}"
    assert k_pages.shape == v_pages.shape, f"{k_pages.shape}, {v_pages.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert packed or not rotate, "rotated float16 pages"
    assert wide is None or wide.shape == (n, heads, 2 * head_dim), f"q {q.shape}, wide {wide.shape}"
    rows = n * heads // kv_heads
    defines = variant(head_dim, packed, rows, rotate, finish)
    row_groups = -(-rows // (8 * defines["TILES"]))
    splits = max(1, resident_blocks(tuple(defines.items()), current_device()) // (kv_heads * row_groups))
    splits = min(splits, -(-len(table) * 128 // defines["SPLIT_TOKENS"]))
    out = cupy.empty((n, heads, head_dim), np.uint16)
    partial = cupy.empty(splits * kv_heads * row_groups * state_floats(defines), np.float32)
    counters = zeros(current_device())
    assert kv_heads * row_groups <= len(counters), f"{kv_heads} kv heads, {row_groups} groups of rows"
    total, more = split_count(tokens)
    ATTENTION_DECODE.launch(
        (splits, kv_heads, row_groups),
        q,
        k_pages,
        v_pages,
        table,
        total,
        more,
        wide,
        out,
        partial,
        counters,
        n,
        heads,
        kv_heads,
        float(np.log2(np.e) / np.sqrt(head_dim)),
        defines=defines,
    )
    return out


@cache
def resident_blocks(defines: tuple[tuple[str, int], ...], device: int) -> int:
    """Blocks of a variant that the device runs at once."""
    properties = import_cupy().cuda.runtime.getDeviceProperties(device)
    shared = ATTENTION_DECODE.shared_bytes(dict(defines)) + 1024 + 16
    registers = 256 if dict(defines)["TILES"] > 1 else 168  # a thread, at most
    by_registers = properties["regsPerMultiprocessor"] // (registers * ATTENTION_DECODE.block(dict(defines)))
    by_shared = properties["sharedMemPerMultiprocessor"] // shared
    return int(properties["multiProcessorCount"] * max(1, min(by_registers, by_shared)))


@cache
def zeros(device: int) -> Any:
    """Counters of finished splits, which every launch leaves at zero. Launches that share them must not overlap."""
    return import_cupy().zeros(4096, np.uint32)
