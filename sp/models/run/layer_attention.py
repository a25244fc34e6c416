"""What may attend in a layer once its keys and values are cached: all to all, or to few blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from sp.arrays import Floats
from sp.models.cache.cache import Cache
from sp.models.layer.steps import dense_attention
from sp.models.run.hooks import looked_at
from sp.ops.attention.attention import gate_output, takes_bytes
from sp.ops.attention.byte_attention.attend import attend
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.sparse.block_budget import BlockBudget
from sp.ops.sparse.block_lists import possible
from sp.ops.sparse.block_selector import BlockSelector
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.ops.sparse.sparse_attention import sparse_attention

ByEnergy = FlashPrefill | TopDensity | BlockBudget  # selectors that go by energies of blocks


class LayerAttention(Protocol):
    """Attention of a whole prompt in one layer, gated: see `sp.models.layer.steps.dense_attention`."""

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN) -> Floats:
        """Queries (n, heads, head_dim) of the layer's last tokens -> (n, heads * head_dim)."""
        ...


class Read(NamedTuple):
    """Blocks that were listed in one call, (heads, query blocks), and how many there were to see."""

    counts: Any
    possible: int


@dataclass
class SparseAttention:
    """Every query sees the key blocks that a selector lists for it; see `sp.ops.sparse.sparse_attention`.

    Fewer queries than a block holds, after a prefix (those of a prefill's last layer), attend densely. Many attend in
    8 bits where the cache asks for it and scores are the usual ones, but not with the means of what is left out:
    that takes sums of weights.

    Parameters
    ----------
    selector : BlockSelector
        ``FlashPrefill(alpha=0.1)`` for example.
    ends : bool
        Whether the last queries are those of the prompt. If not, as in a prompt's earlier chunks, a selector that
        reads all blocks for the last query blocks does not.
    reads : dict of int to list of Read
        What each layer listed so far.
    """

    selector: BlockSelector
    ends: bool = True
    reads: dict[int, list[Read]] = field(default_factory=dict)

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN) -> Floats:
        """See `LayerAttention`."""
        at = cache.stored(layer)
        n, heads, d = q.shape
        if n < min(BLOCK, at.tokens):
            return dense_attention(cache, layer, q, gate, rule)
        selector = self.selector
        if not self.ends and isinstance(selector, ByEnergy):
            selector = _without_ends(selector)
        q = at.queries(q)
        corrects, scale = isinstance(selector, FlashPrefill) and selector.mean_correction, rule.scale or d**-0.5
        if takes_bytes(cache.precision, n) and rule.fits_bytes and rule.window is None and not corrects:
            lists = selector.select(q, at, scale)
            out, counts = attend(q, at, scale, lists), lists.counts
        else:
            out, counts = sparse_attention(q, at, scale, selector, rule)
        self.reads.setdefault(layer, []).append(Read(counts, heads * possible(n, at.tokens)))
        return gate_output(out, gate, at.rotated)

    def before_end(self, blocks: int) -> SparseAttention:
        """The same for queries that `blocks` key blocks of the prompt follow; with nothing counted yet."""
        last_n = getattr(self.selector, "last_n", 0)
        if not last_n or not blocks:
            return replace(self, reads={})
        rest: Any = self.selector
        return replace(self, selector=replace(rest, last_n=max(0, last_n - blocks)), reads={})

    def densities(self) -> tuple[float, ...]:
        """Share of the causal blocks that was read, layer by layer; waits for the device."""
        listed = [reads for _, reads in sorted(self.reads.items())]
        counts = iter(looked_at([read.counts for reads in listed for read in reads]))
        return tuple(
            sum(int(next(counts).sum()) for _ in reads) / sum(read.possible for read in reads) for reads in listed
        )


@lru_cache(64)
def _without_ends(selector: Any) -> Any:
    """The same for queries that are not a prompt's last, which every layer asks for."""
    return replace(selector, last_n=0)
