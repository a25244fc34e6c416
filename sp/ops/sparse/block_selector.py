"""The protocol of block selectors, and the selectors that do not depend on scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sp.arrays import Bools, Floats
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.sparse.block_lists import causal, forced, lists_of
from sp.ops.sparse.flashprefill import check_forced


class BlockSelector(Protocol):
    """A selector of key blocks: those of `sp.ops.sparse.flashprefill` and `block_budget`, and those below."""

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """List the key blocks that each query block of each query head attends to. `q`: float32 (n, heads, d), on the
        device float16, the last `n` tokens of `at`, in the basis of the cached keys, not yet scaled. Returns
        BlockLists, on the device for a device `q`. Ascending, without blocks after the last row of the query block.
        Each row should see a key, which is so if the block on its diagonal is listed."""
        ...


@dataclass(frozen=True)
class Dense:
    """Select all blocks."""

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return every block that any row sees."""
        return _listed(causal(len(q), at.tokens)[None], q)


@dataclass(frozen=True)
class Streaming:
    """The first blocks and the nearest: attention sinks and a sliding window.

    References
    ----------
    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023.
    """

    sink: int = 2
    window: int = 4
    last_n: int = 0

    def __post_init__(self) -> None:
        check_forced("Streaming", self.sink, self.window, self.last_n)

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return the forced blocks of `FlashPrefill` only."""
        return _listed(forced(len(q), at.tokens, self.sink, self.window, self.last_n)[None], q, self.last_n)


@dataclass(frozen=True, eq=False)
class GivenMask:
    """A mask from elsewhere, boolean (heads or 1, query_blocks, blocks); blocks that are not causal are dropped."""

    mask: Bools

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return the mask's blocks."""
        seen = causal(len(q), at.tokens)
        if self.mask.ndim != 3 or self.mask.shape[0] not in (1, q.shape[1]) or self.mask.shape[1:] != seen.shape:
            raise ConfigError(
                f"a mask of {self.mask.shape} for {q.shape[1]} heads, query blocks and blocks {seen.shape}"
            )
        return _listed(self.mask & seen, q)


def _listed(mask: Bools, q: Any, long_blocks: int = 0) -> BlockLists:
    lists = lists_of(mask, long_blocks)
    xp = import_cupy() if is_device(q) else np
    counts, indices = (
        xp.ascontiguousarray(xp.broadcast_to(xp.asarray(a), (q.shape[1], *a.shape[1:])))
        for a in (lists.counts, lists.indices)
    )
    return BlockLists(counts, indices, long_blocks)
