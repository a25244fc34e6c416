"""paged_attention: attention of the last tokens of a sequence over keys and values that lie in pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.kernels import current_path, import_cupy, is_device
from sp.kernels.declared.attention_rows import ROTATE_ROWS, ROWS_A_BLOCK
from sp.ops.attention import attention
from sp.ops.gate_output import gate_output
from sp.ops.hadamard import hadamard
from sp.ops.kv_pages import PAGE_TOKENS, is_packed, kv_gather, unpacked_pages
from sp.quant import BlockFormat

DECODE_ROWS = 64
"""Most queries that go to the kernel split over the cache."""


def paged_attention(
    q: Floats,
    k_pages: Bytes,
    v_pages: Bytes,
    table: Ints,
    tokens: int,
    fmt: BlockFormat,
    rotate_block: int = 0,
    total: Ints | None = None,
) -> Floats:
    """Causal attention of the last ``len(q)`` of `tokens` tokens; see `attention` for the formula.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
    k_pages, v_pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,), on the device int32
        Pages of the sequence, in order.
    tokens : int
        Tokens of the sequence, the queries' own among them.
    fmt : BlockFormat
        How pages are packed.
    rotate_block : int
        Where keys were cached rotated: the Hadamard block, by which queries are rotated too. 0 where not.
    total : int32 (1,), optional
        On the device: `tokens` where a kernel can read it, for CUDA graphs. At most 64 queries look at it.

    Returns
    -------
    float32 (n, heads, d), on the device bf16
        In the basis of the cached values: rotated if those are.
    """
    if is_device(q):
        out: Floats = _on_device(q, k_pages, v_pages, table, tokens, fmt, rotate_block, total)
        return out
    if rotate_block:
        q = hadamard(q, rotate_block)
    return attention(q, kv_gather(k_pages, table, tokens, fmt), kv_gather(v_pages, table, tokens, fmt))


def attention_output(
    q: Floats,
    k_pages: Bytes,
    v_pages: Bytes,
    table: Ints,
    tokens: int,
    fmt: BlockFormat,
    rotate_block: int = 0,
    total: Ints | None = None,
    wide: Floats | None = None,
) -> Floats:
    """`paged_attention`, then `gate_output` with `wide`: (n, heads * d). On the device one launch for few queries."""
    if is_device(q) and len(q) <= DECODE_ROWS and (is_packed(fmt) or not rotate_block):
        from sp.ops.attention_decode import decode

        count = tokens if total is None else total
        out: Floats = decode(q, k_pages, v_pages, table, count, fmt, rotate=rotate_block > 0, finish=True, wide=wide)
        return out.reshape(len(q), q.shape[1] * q.shape[2])
    out = paged_attention(q, k_pages, v_pages, table, tokens, fmt, rotate_block, total)
    return gate_output(out, wide, rotate_block > 0)


def _on_device(
    q: Any, k_pages: Any, v_pages: Any, table: Any, tokens: int, fmt: BlockFormat, rotate_block: int, total: Any
) -> Any:
    n, heads, head_dim = q.shape
    packed = is_packed(fmt)
    fused = packed and n <= DECODE_ROWS  # that kernel rotates queries itself
    if rotate_block and not fused:
        assert rotate_block == head_dim, f"rotation over {rotate_block} of {head_dim}"
        rotated = import_cupy().empty(q.shape, np.float16)
        defines = {"HEAD_DIM": head_dim, "ROTATE": rotate_block}
        ROTATE_ROWS.launch((-(-n * heads // ROWS_A_BLOCK),), q, rotated, n * heads, defines=defines)
        q = rotated
    if n <= DECODE_ROWS:
        from sp.ops.attention_decode import decode

        count = tokens if total is None else total
        return decode(q, k_pages, v_pages, table, count, fmt, rotate=fused and rotate_block > 0)
    return _prefill(q, k_pages, v_pages, table, tokens, fmt)


def _prefill(q: Any, k_pages: Any, v_pages: Any, table: Any, tokens: int, fmt: BlockFormat) -> Any:
    head_dim = q.shape[2]
    if current_path() == "sm_90a" and head_dim in (128, 256):
        from sp.ops.attention_sm90 import prefill

        if is_packed(fmt):
            k_pages, v_pages = (unpacked_pages(pages, table, tokens, fmt) for pages in (k_pages, v_pages))
            table = import_cupy().arange(-(-tokens // PAGE_TOKENS), dtype=np.int32)
        return prefill(q, k_pages, v_pages, table, tokens, head_dim**-0.5)
    from sp.ops.attention_portable import prefill as portable

    return portable(q, k_pages, v_pages, table, tokens, fmt, head_dim**-0.5)
