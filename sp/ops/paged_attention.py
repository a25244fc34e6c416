"""paged_attention: attention of the last tokens of a sequence over keys and values that lie in pages."""

from __future__ import annotations

from sp.arrays import Bytes, Floats, Ints
from sp.ops.attention import attention
from sp.ops.hadamard import hadamard
from sp.ops.kv_pages import kv_gather
from sp.quant import BlockFormat


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
    q : float32 (n, heads, d)
    k_pages, v_pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,)
        Pages of the sequence, in order.
    tokens : int
        Tokens of the sequence, the queries' own among them.
    fmt : BlockFormat
        How pages are packed.
    rotate_block : int
        Where keys were cached rotated: the Hadamard block, by which queries are rotated too. 0 where not.
    total : int32 (1,), optional
        On the device: `tokens` where a kernel can read it, for CUDA graphs.

    Returns
    -------
    float32 (n, heads, d)
        In the basis of the cached values: rotated if those are.
    """
    if rotate_block:
        q = hadamard(q, rotate_block)
    return attention(q, kv_gather(k_pages, table, tokens, fmt), kv_gather(v_pages, table, tokens, fmt))
