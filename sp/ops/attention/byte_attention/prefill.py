"""prefill: causal attention of many queries in eight bits on Hopper, dense or over lists of key blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.signature import describe, rows_contiguous
from sp.kernels.specs.attention.attention_bytes import ATTENTION_BYTES, HEAD_DIM, STAGES, TILE
from sp.kernels.tensor_map import tensor_map
from sp.ops.attention.byte_attention.pages import BytePages
from sp.ops.attention.key_blocks import BLOCK, BlockLists


def prefill(q: Any, at: BytePages, scale: float, blocks: BlockLists | None = None, *, out: Any = None) -> Any:
    """Attention of the last `n` of the tokens of `at` over all before them, or over the listed blocks of them. The twin
    is `sp.ops.attention.byte_attention.twin.byte_attention`. Returns cupy uint16 (n, heads, 128), bf16.

    Parameters
    ----------
    q : cupy float16 (n, heads, 128)
        Rotated queries, not yet scaled; rows and heads may be strided by multiples of 16 bytes.
    at : BytePages, at least `n` tokens; ``heads % kv_heads == 0``
    scale, blocks, out : See `sp.ops.attention.attention_sm90.prefill`
    """
    cupy = import_cupy()
    n, heads, d = q.shape
    if q.dtype != np.float16 or (n > 0 and not rows_contiguous(q)):  # CuPy gives empty arrays strides of 0
        raise DeviceError(f"attention: expected float16 queries with contiguous rows, got {describe(q)}, {q.strides}")
    kv_heads, held = at.k.shape[:2]
    assert d == HEAD_DIM, f"head_dim {d}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert out is None or out.shape == q.shape, f"out {out.shape}, q {q.shape}"
    assert n <= at.tokens <= held * TILE, f"{n} queries, {at.tokens} tokens, {held} blocks"
    if out is None:
        out = cupy.empty((n, heads, d), np.uint16)
    if n == 0:
        return out
    query_blocks, group = -(-n // BLOCK), heads // kv_heads
    counts = indices = None
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, query_blocks) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
    rows = kv_heads * held * TILE
    ATTENTION_BYTES.launch(
        (min(query_blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, d // 64, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, d // 64, 1)),
        *(tensor_map(codes, (HEAD_DIM, rows), (HEAD_DIM,), (HEAD_DIM, TILE)) for codes in (at.k, at.v)),
        at.key_scales,
        at.value_peaks,
        counts,
        indices,
        out,
        cupy.zeros(1, np.int32),
        at.tokens,
        n,
        heads,
        group,
        group,  # heads that read the same pages run side by side
        0 if blocks is None else min(blocks.long_blocks, query_blocks),
        0 if indices is None else indices.shape[2],
        scale,
        defines={"STAGES": STAGES},
    )
    return out
