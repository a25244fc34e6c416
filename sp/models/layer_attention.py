"""What may attend in a layer once its keys and values are cached: all to all, or to few blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models.cache import Cache
from sp.ops.block_lists import density
from sp.ops.block_selector import BlockSelector
from sp.ops.gate_output import gate_output
from sp.ops.sparse_attention import sparse_attention


class LayerAttention(Protocol):
    """Attention of a whole prompt in one layer, gated: the same call as `Cache.attend`."""

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None) -> Floats:
        """Queries (n, heads, head_dim) of the layer's last tokens -> (n, heads * head_dim)."""
        ...


def dense_attention(cache: Cache, layer: int, q: Floats, gate: Floats | None) -> Floats:
    """Every query sees every token before it."""
    return cache.attend(layer, q, gate)


@dataclass
class SparseAttention:
    """Every query sees the key blocks that a selector lists for it; see `sp.ops.sparse_attention`.

    Layers that attend for a few last tokens only (the last layer of a prefill) do so densely.

    Parameters
    ----------
    selector : BlockSelector
        ``FlashPrefill(alpha=0.1)`` for example.
    counts : list of int32 (heads, query blocks)
        Blocks each query block of a layer read, one array a layer so far.
    """

    selector: BlockSelector
    counts: list[Any] = field(default_factory=list)

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None) -> Floats:
        """See `LayerAttention`."""
        if cache.rotate:
            raise ConfigError("sparse attention reads keys that are not rotated; make the cache with rotate=False")
        at = cache.stored(layer)
        if len(q) < at.tokens:
            return cache.attend(layer, q, gate)
        scale = float(q.shape[2]) ** -0.5
        out, counts = sparse_attention(q, at.k, at.v, at.table, at.tokens, scale, self.selector, at.fmt)
        self.counts.append(counts)
        return gate_output(out, gate, False)

    def densities(self) -> tuple[float, ...]:
        """Share of the causal blocks that was read, layer by layer; waits for the device."""
        return tuple(density(counts) for counts in self.counts)
