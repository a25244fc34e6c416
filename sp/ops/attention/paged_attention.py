"""paged_attention: attention of the last tokens of a sequence over keys and values that lie in pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.kernels import current_path, import_cupy, is_device
from sp.ops.attention.attention import attention
from sp.ops.attention.gate_output import gate_output
from sp.ops.attention.kv_pages import PAGE_TOKENS, is_packed, kv_gather, unpacked_pages
from sp.ops.hadamard import hadamard
from sp.quant import F16, BlockFormat

FEW_QUERIES = 64
"""Most queries that go to the kernels which split the cache and read its length on the device."""
DECODE_ROWS = 16
"""Most query rows of a kv head that go to the one of these for decoding."""
WORKSPACE_BYTES = 1 << 30
"""Most memory for Q4_0 pages unpacked before a prefill; past it the kernel unpacks them itself, which is slower."""


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
    """`paged_attention`, then `gate_output` with `wide`: (n, heads * d). On the device in one go for few queries."""
    if is_device(q) and len(q) <= FEW_QUERIES:
        count = tokens if total is None else total
        out: Floats = _few(q, k_pages, v_pages, table, count, fmt, rotate_block, finish=True, wide=wide)
        return out.reshape(len(q), q.shape[1] * q.shape[2])
    out = paged_attention(q, k_pages, v_pages, table, tokens, fmt, rotate_block, total)
    return gate_output(out, wide, rotate_block > 0)


def _on_device(
    q: Any, k_pages: Any, v_pages: Any, table: Any, tokens: int, fmt: BlockFormat, rotate_block: int, total: Any
) -> Any:
    if len(q) <= FEW_QUERIES:
        return _few(q, k_pages, v_pages, table, tokens if total is None else total, fmt, rotate_block)
    return _prefill(_rotated(q, rotate_block), k_pages, v_pages, table, tokens, fmt)


def _rotated(q: Any, block: int) -> Any:
    return hadamard(q, block) if block else q


def _few(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    count: Any,
    fmt: BlockFormat,
    rotate_block: int,
    *,
    finish: bool = False,
    wide: Any = None,
) -> Any:
    rotate = rotate_block > 0
    if len(q) * q.shape[1] <= DECODE_ROWS * k_pages.shape[2]:
        from sp.ops.attention.attention_decode import decode

        q = q if is_packed(fmt) else _rotated(q, rotate_block)  # over packed pages the kernel does it
        return decode(q, k_pages, v_pages, table, count, fmt, rotate=rotate, finish=finish, wide=wide)
    from sp.ops.attention.attention_split import split

    return split(q, k_pages, v_pages, table, count, fmt, rotate=rotate, finish=finish, wide=wide)


def _prefill(q: Any, k_pages: Any, v_pages: Any, table: Any, tokens: int, fmt: BlockFormat) -> Any:
    head_dim, pages = q.shape[2], -(-tokens // PAGE_TOKENS)
    if is_packed(fmt) and 2 * pages * PAGE_TOKENS * k_pages.shape[2] * head_dim * 2 <= WORKSPACE_BYTES:
        k_pages, v_pages = (unpacked_pages(one, table, tokens, fmt).view(np.uint8) for one in (k_pages, v_pages))
        table, fmt = import_cupy().arange(pages, dtype=np.int32), F16
    if fmt is F16 and head_dim in (128, 256) and current_path() == "sm_90a":
        from sp.ops.attention.attention_sm90 import prefill

        return prefill(q, k_pages, v_pages, table, tokens, head_dim**-0.5)
    from sp.ops.attention.attention_portable import prefill as portable

    return portable(q, k_pages, v_pages, table, tokens, fmt, head_dim**-0.5)
