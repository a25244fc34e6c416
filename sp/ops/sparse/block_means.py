"""The mean key (or value) of every block of 128 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.flashprefill import BLOCK_MEANS
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import kv_gather, page_head_dim, rows_number
from sp.quant import BlockFormat


def block_means(pages: Bytes, table: Ints, tokens: int, fmt: BlockFormat) -> Floats:
    """Compute the mean over the tokens of each block; the last one may be shorter. Rounded to f16 once. Returns float32
    (kv_heads, blocks, head_dim), on the device float16.

    Parameters
    ----------
    pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
    table : int64 (pages,), on the device int32
    tokens : int, slots from `tokens` on are not read

    Examples
    --------
    >>> from sp.quant import F32
    >>> keys = np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
    >>> block_means(keys.view(np.uint8), np.array([0]), 3, F32).ravel().tolist()
    [1.0]
    """
    if is_device(pages):
        means: Floats = _on_device(pages, table, tokens, fmt)
        return means
    return means_of(kv_gather(pages, table, tokens, fmt))


def means_of(rows: Floats) -> Floats:
    """`block_means` of rows (tokens, kv_heads, head_dim) outside of pages; float64 sums for float64 rows."""
    starts = np.arange(0, len(rows), BLOCK)
    sizes = np.minimum(BLOCK, len(rows) - starts).astype(rows.dtype)
    means = np.add.reduceat(rows, starts, axis=0) / sizes[:, None, None]
    return np.ascontiguousarray(means.transpose(1, 0, 2).astype(np.float16).astype(rows.dtype))


def _on_device(pages: Any, table: Any, tokens: int, fmt: BlockFormat) -> Any:
    head_dim, kv_heads, blocks = page_head_dim(pages, fmt), pages.shape[2], -(-tokens // BLOCK)
    assert blocks <= len(table), f"{tokens} tokens in {len(table)} pages"
    means = import_cupy().empty((kv_heads, blocks, head_dim), np.float16)
    defines = {"HEAD_DIM": head_dim, "FORMAT": rows_number(fmt)}
    BLOCK_MEANS.launch((kv_heads, blocks), pages, table, means, tokens, kv_heads, defines=defines)
    return means
