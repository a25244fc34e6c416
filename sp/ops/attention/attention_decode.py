"""Attention of few queries over a long paged cache on the device, split over the cache (split-KV)."""

from __future__ import annotations

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
from sp.kernels.kept import cache
from sp.kernels.launch import KernelSpec
from sp.kernels.specs.attention.attention_decode import ATTENTION_DECODE, ring_variant, state_floats, variant
from sp.ops.attention.kv_pages import PagedKV, rows_formats, split_count


def decode(q: Any, at: PagedKV, *, finish: bool = False, wide: Any = None) -> Any:
    """Compute attention of the last `n` tokens of `at`, in one launch whose grid does not depend on their number.

    The NumPy reference is `sp.ops.attention.attention.attention_output`, and `paged_attention` without `finish`.

    `q`: cupy float16 (n, heads, d), in the basis of the cached keys; `at`: the length of its table bounds its tokens;
    `finish`: run the epilogue: rotate outputs back and apply the gate of `wide`, bf16 (n, heads, 2 d), if there is one.

    Returns cupy uint16 (n, heads, d), bf16. Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    cupy = import_cupy()
    n, heads, head_dim = q.shape
    at.check_queries(q)
    kv_heads = at.kv_heads
    assert wide is None or wide.shape == (n, heads, 2 * head_dim), f"q {q.shape}, wide {wide.shape}"
    rows = n * heads // kv_heads
    roomy, recent = is_roomy(current_device()), at.recent is not None
    defines = variant(head_dim, rows_formats(at), rows, at.rotated, finish, roomy=roomy, recent=recent)
    # A block takes 8 query rows per tile; the grid is as large as the device runs at once, so that splits end together.
    row_groups = -(-rows // (8 * defines["TILES"]))
    splits = max(
        1, resident_blocks(ATTENTION_DECODE, tuple(defines.items()), current_device()) // (kv_heads * row_groups)
    )
    splits = min(splits, -(-len(at.table) * 128 // defines["SPLIT_TOKENS"]))
    out = cupy.empty((n, heads, head_dim), np.uint16)
    parts = splits + recent  # the exact rows of the newest tokens are a part of their own
    partial = cupy.empty(parts * kv_heads * row_groups * state_floats(defines), np.float32)
    counters = zeros(current_device())
    assert kv_heads * row_groups <= len(counters), f"{kv_heads} kv heads, {row_groups} groups of rows"
    total, more = split_count(at.count)
    shape = n, heads, kv_heads, float(np.log2(np.e) / np.sqrt(head_dim)), parts
    if at.recent is not None:
        ring = at.recent.ring(at)
        ATTENTION_DECODE.launch(
            (1, kv_heads, row_groups), q, ring.k, ring.v, ring.table, total, more, wide, out, partial, counters, *shape,
            defines=ring_variant(head_dim, rows, roomy),
        )  # fmt: skip
    ATTENTION_DECODE.launch(
        (splits, kv_heads, row_groups), q, at.k, at.v, at.table, total, more, wide, out, partial, counters, *shape,
        defines=defines,
    )  # fmt: skip
    return out


@cache
def resident_blocks(kernel: KernelSpec, defines: tuple[tuple[str, int], ...], device: int) -> int:
    """Return the number of blocks of a variant that the device runs at once, if the compiler uses all registers it
    may."""
    threads = kernel.block(dict(defines))
    registers = min(255, 65536 // threads)
    fit = shared_bytes_per_multiprocessor(device) // (kernel.shared_bytes(dict(defines)) + 1024 + 16)
    fit = min(fit, registers_per_multiprocessor(device) // (-(-registers // 8) * 8 * threads))
    return multiprocessors(device) * max(1, fit)


@cache
def is_roomy(device: int) -> bool:
    """Return True if a block may have 224 KiB of shared memory."""
    return shared_bytes_per_block(device) >= 224 << 10


@cache
def zeros(device: int) -> Any:
    """Return counters of finished splits, which every launch leaves at zero. Launches that share them must not
    overlap."""
    return import_cupy().zeros(4096, np.uint32)
