"""Attention of one layer once its keys and values are stored: over all tokens, or over few blocks of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from sp.arrays import Floats
from sp.models.cache.cache import Cache
from sp.models.layer.steps import dense_attention
from sp.models.run.hooks import counts_on_host
from sp.ops.attention.attention import gate_output, takes_bytes
from sp.ops.attention.byte_attention.attend import attend, fits
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.skip_softmax import SkipSoftmax, skipping_attention
from sp.ops.sparse.block_budget import BlockBudget
from sp.ops.sparse.block_lists import possible
from sp.ops.sparse.block_selector import BlockSelector
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.ops.sparse.sparse_attention import sparse_attention

ByEnergy = FlashPrefill | TopDensity | BlockBudget  # selectors based on block energies


class LayerAttention(Protocol):
    """Gated attention of a whole prompt in one layer: see `sp.models.layer.steps.dense_attention`."""

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN) -> Floats:
        """Map queries (n, heads, head_dim) of the layer's last tokens to (n, heads * head_dim)."""
        ...


class BlockCounts(NamedTuple):
    """Number of blocks listed in one call, (heads, query blocks), and the number of causally visible blocks; of
    `SkipSoftmax` those of its tiles."""

    counts: Any
    possible: int


@dataclass
class SparseAttention:
    """Attention in which every query sees the key blocks that a selector lists for it, see
    `sp.ops.sparse.sparse_attention`; or all but tiles of little weight, see `sp.ops.skip_softmax`.

    Fewer queries than a block, after a prefix (those of a prefill's last layer), attend densely. Many queries use the
    int8 or fp8 kernels if the cache asks for it and scores are plain, except with mean correction, which needs sums of
    weights. `SkipSoftmax` uses kernels of 16 bits alone; layers with windows, sinks or a softcap attend densely there.

    Parameters
    ----------
    selector : BlockSelector or SkipSoftmax
        For example ``FlashPrefill(alpha=0.1)``.
    ends : bool
        True if the last queries are those of the prompt. In earlier chunks of a prompt it is False, and a selector that
        reads all blocks for the last query blocks does not do so.
    reads : dict of int to list of BlockCounts
        Block counts of each layer so far.
    """

    selector: BlockSelector | SkipSoftmax
    ends: bool = True
    reads: dict[int, list[BlockCounts]] = field(default_factory=dict)

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN) -> Floats:
        """Attend over the selected blocks, see `LayerAttention`."""
        pages = cache.stored(layer)
        n, heads, d = q.shape
        # Blocks are selected for whole blocks of queries; fewer queries attend densely.
        if n < min(BLOCK, pages.tokens):
            return dense_attention(cache, layer, q, gate, rule)
        selector = self.selector
        if isinstance(selector, SkipSoftmax):
            return self._skipping(selector, cache, layer, q, gate, rule)
        # The last blocks of a chunk are not the question at the end of the prompt.
        if not self.ends and isinstance(selector, ByEnergy):
            selector = _without_ends(selector)
        q = pages.queries(q)
        corrects, scale = isinstance(selector, FlashPrefill) and selector.mean_correction, rule.scale or d**-0.5
        if takes_bytes(cache.precision, n) and fits(d, rule, True) and rule.window is None and not corrects:
            # The 8-bit kernel takes block lists; the other path selects and attends in one call.
            lists = selector.select(q, pages, scale)
            out, counts = attend(q, pages, scale, lists), lists.counts
        else:
            out, counts = sparse_attention(q, pages, scale, selector, rule)
        self.reads.setdefault(layer, []).append(BlockCounts(counts, heads * possible(n, pages.tokens)))
        return gate_output(out, gate, pages.rotated)

    def _skipping(
        self, selector: SkipSoftmax, cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule
    ) -> Floats:
        """Attend without tiles of little weight."""
        if rule.window is not None or rule.softcap is not None or rule.sinks is not None:
            return dense_attention(cache, layer, q, gate, rule)
        pages = cache.stored(layer)
        out, tiles = skipping_attention(pages.queries(q), pages, rule.scale or q.shape[2] ** -0.5, selector)
        self.reads.setdefault(layer, []).append(BlockCounts(tiles.read, tiles.possible))
        return gate_output(out, gate, pages.rotated)

    def before_end(self, blocks: int) -> SparseAttention:
        """Return a copy for queries that `blocks` key blocks of the prompt follow, without counts."""
        last_n = getattr(self.selector, "last_n", 0)
        if not last_n or not blocks:
            return replace(self, reads={})
        rest: Any = self.selector
        return replace(self, selector=replace(rest, last_n=max(0, last_n - blocks)), reads={})

    def densities(self) -> tuple[float, ...]:
        """Return the share of the causal blocks that was read, by layer; waits for the device."""
        by_layer = [counts for _, counts in sorted(self.reads.items())]
        on_host = iter(counts_on_host([call.counts for calls in by_layer for call in calls]))
        return tuple(
            sum(int(next(on_host).sum()) for _ in calls) / sum(call.possible for call in calls) for calls in by_layer
        )


@lru_cache(64)
def _without_ends(selector: Any) -> Any:
    """Return the selector for queries that are not the last of a prompt; cached, because every layer asks for it."""
    return replace(selector, last_n=0)
