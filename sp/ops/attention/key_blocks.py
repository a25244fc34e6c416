"""BlockLists: which key blocks each block of queries reads, as the prefill kernels take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLOCK = 128  # queries of a query block, keys of a key block, tokens of a page


@dataclass(frozen=True)
class BlockLists:
    """Key blocks that each query block of each query head reads; `sp.ops.sparse.block_lists` makes and reads them.
    `indices`: int32 (heads, query_blocks, width), their numbers (block b is tokens ``128 b .. 128 b + 127``),
    ascending; entries past the count are not read."""

    counts: Any  # int32 (heads, query_blocks), how many blocks are listed; 0 gives zeros
    indices: Any
    long_blocks: int = 0  # the last so many query blocks have much longer lists than the others: they start first
