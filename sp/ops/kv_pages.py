"""kv_append and kv_gather: rows of K or V into pages named by a block table, and out again."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.ops.hadamard import hadamard
from sp.ops.threads import run_parallel, token_slices
from sp.quant import BlockFormat


def kv_append(pages: Bytes, table: Ints, start: int, values: Floats, fmt: BlockFormat, rotate_block: int = 0) -> None:
    """Pack `values` and store them at token `start` and after, in place.

    Token ``t`` of a sequence lies in page ``table[t // page_tokens]``, slot ``t % page_tokens``; each head's row
    is packed on its own.

    Parameters
    ----------
    pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,)
        Pages of this sequence, in order; must reach token ``start + tokens``.
    start : int
        Tokens stored already.
    values : float32 (tokens, kv_heads, head_dim)
    fmt : BlockFormat
        F32, F16, Q4_0, ...; head_dim must be whole blocks.
    rotate_block : int
        Where not 0, heads are first rotated in blocks of this size; see `hadamard`.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F16
    >>> pages = np.zeros((3, 2, 1, 4), np.uint8)  # 3 pages of 2 tokens, 1 head of 2 values
    >>> kv = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    >>> kv_append(pages, np.array([2, 0]), 0, kv, F16)
    >>> kv_gather(pages, np.array([2, 0]), 3, F16).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    page_tokens = pages.shape[1]
    assert start + len(values) <= len(table) * page_tokens, f"{start}+{len(values)} past {len(table)} pages"
    if rotate_block:
        values = hadamard(values, rotate_block)
    slots = np.arange(start, start + len(values))
    pages[table[slots // page_tokens], slots % page_tokens] = fmt.encode(values)


def kv_gather(pages: Bytes, table: Ints, tokens: int, fmt: BlockFormat) -> Floats:
    """Unpack the first `tokens` tokens of a sequence: the inverse of `kv_append`.

    Parameters
    ----------
    pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (blocks,)
    tokens : int
    fmt : BlockFormat

    Returns
    -------
    float32 (tokens, kv_heads, head_dim)

    Examples
    --------
    >>> import numpy as np
    >>> from sp.quant import F32
    >>> kv_gather(np.zeros((1, 4, 2, 8), np.uint8), np.array([0]), 3, F32).shape
    (3, 2, 2)
    """
    page_tokens = pages.shape[1]
    assert tokens <= len(table) * page_tokens, f"{tokens} tokens in {len(table)} pages of {page_tokens}"
    head_dim = pages.shape[3] // fmt.block_bytes * fmt.block_size
    out = np.empty((tokens, pages.shape[2], head_dim), np.float32)

    def unpack(part: slice) -> None:
        slots = np.arange(part.start, part.stop)
        out[part] = fmt.decode(pages[table[slots // page_tokens], slots % page_tokens])

    run_parallel(unpack, token_slices(tokens, 1024))
    return out
