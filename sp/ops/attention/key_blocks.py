"""BlockLists: the key blocks that each query block attends to, in the layout of the prefill kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLOCK = 128  # queries of a query block, keys of a key block, tokens of a page


@dataclass(frozen=True)
class BlockLists:
    """Key blocks that each query block of each query head attends to; created and read by `sp.ops.sparse.block_lists`.
    `indices`: int32 (heads, query_blocks, width), block numbers (block b is tokens ``128 b .. 128 b + 127``),
    ascending; entries past the count are not read."""

    counts: Any  # int32 (heads, query_blocks), the number of listed blocks; 0 yields zeros
    indices: Any
    long_blocks: int = 0  # number of last query blocks with much longer lists than the others: they start first
