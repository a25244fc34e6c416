"""Attention over f16 values with keys in 8 bits, of heads of 256 values, on Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.signature import describe, rows_contiguous
from sp.kernels.specs.attention.attention_bytes import (
    ATTENTION_BYTE_KEYS,
    KEY_BYTES,
    KEY_CENTRE,
    KEY_TILE,
    KEYS_ONLY,
    KEYS_STAGES,
    TILE,
)
from sp.kernels.tensor_map import tensor_map
from sp.ops.attention.byte_attention.twin import sampled_blocks
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import PagedKV, page_head_dim


def sampled_centre(at: PagedKV) -> Any:
    """Return `key_centre` of the float16 keys of `at`: float32 (kv_heads, head_dim)."""
    width, sampled = page_head_dim(at.k, at.fmt), sampled_blocks(at.tokens)
    centre = import_cupy().empty((at.kv_heads, width), np.float32)
    count = len(range(sampled.start, sampled.stop, sampled.step))
    KEY_CENTRE.launch(
        (at.kv_heads,), at.k, at.table, centre, count, sampled.step, at.kv_heads, defines={"WIDTH": width}
    )
    return centre


def key_bytes(at: PagedKV, centre: Any = None) -> tuple[Any, Any]:
    """Quantise the float16 keys of `at`, heads of 256 values, minus `centre`, by default `sampled_centre`, and rotated
    as in `rotated_heads`. Returns codes, int8 as uint8 (kv_heads, blocks, 128, 256), zeros past the last token, and
    scales, float32 (kv_heads, blocks)."""
    cupy, blocks = import_cupy(), -(-at.tokens // TILE)
    codes = cupy.empty((at.kv_heads, blocks, TILE, KEYS_ONLY), np.uint8)
    scales = cupy.empty((at.kv_heads, blocks), np.float32)
    centre = sampled_centre(at) if centre is None else centre
    grid = at.kv_heads, blocks
    KEY_BYTES.launch(grid, at.k, at.table, centre, codes, scales, at.tokens, at.kv_heads, defines={"WIDTH": KEYS_ONLY})
    return codes, scales


def prefill_with_keys(q: Any, at: PagedKV, scale: float, *, centre: Any = None, out: Any = None) -> Any:
    """Compute attention of the last `n` tokens of `at` over all tokens before them. The NumPy reference is
    `sp.ops.attention.byte_attention.twin.byte_key_attention`. Returns cupy uint16 (n, heads, 256), bf16.

    Parameters
    ----------
    q : cupy float16 (n, heads, 256)
        Rotated queries, not yet scaled; rows and heads may be strided by multiples of 16 bytes.
    at : PagedKV, at least `n` tokens; packed pages are unpacked first; ``heads % kv_heads == 0``
    scale : float, positive
    centre : cupy float32 (kv_heads, 256), optional, subtracted from keys before rounding
    out : cupy uint16 (n, heads, 256), optional, receives the result
    """
    cupy, at = import_cupy(), at.unpacked()
    n, heads, d = q.shape
    if q.dtype != np.float16 or (n > 0 and not rows_contiguous(q)):  # CuPy gives empty arrays strides of 0
        raise DeviceError(f"attention: expected float16 queries with contiguous rows, got {describe(q)}, {q.strides}")
    kv_heads, pages, blocks = at.kv_heads, at.v.view(np.float16), -(-at.tokens // TILE)
    assert d == KEYS_ONLY == page_head_dim(at.k, at.fmt), f"head_dim {d}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert out is None or out.shape == q.shape, f"out {out.shape}, q {q.shape}"
    assert n <= at.tokens <= len(at.table) * BLOCK, f"{n} queries, {at.tokens} tokens, {len(at.table)} pages"
    if out is None:
        out = cupy.empty((n, heads, d), np.uint16)
    if n == 0:
        return out
    codes, scales = key_bytes(at, centre)
    query_blocks, group, panels = -(-n // BLOCK), heads // kv_heads, d // 64
    ATTENTION_BYTE_KEYS.launch(
        (min(query_blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, panels, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, panels, 1)),
        tensor_map(codes, (128, kv_heads * blocks * TILE, 2), (d, 128), (128, KEY_TILE, 2)),
        tensor_map(
            pages, (64, len(pages) * BLOCK, panels, kv_heads), (kv_heads * d * 2, 128, d * 2), (64, KEY_TILE, panels, 1)
        ),
        scales,
        at.table,
        out,
        cupy.zeros(1, np.int32),
        at.tokens,
        n,
        heads,
        group,
        group,  # heads that share pages run at the same time, so that these stay in L2
        scale,
        defines={"STAGES": KEYS_STAGES},
    )
    return out
