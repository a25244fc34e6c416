"""What may attend in a layer once its keys and values are cached: all to all, or few blocks chosen by FlashPrefill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.kernels import is_device
from sp.models.cache import Cache
from sp.ops.gate_output import gate_output

if TYPE_CHECKING:
    from sp.ops.flashprefill import FlashPrefill


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
    """Every query sees the blocks of keys that `sp.ops.flashprefill` finds for it.

    Layers that attend for few last tokens only (the last layer of a prefill) do so densely.

    Parameters
    ----------
    options : FlashPrefill
    counts : list of arrays (heads, query blocks)
        Blocks each query block of a layer read, one array a layer so far.
    """

    options: FlashPrefill
    counts: list[Any] = field(default_factory=list)

    def __call__(self, cache: Cache, layer: int, q: Floats, gate: Floats | None) -> Floats:
        """See `LayerAttention`."""
        from sp.ops.flashprefill import sparse_attention

        if cache.rotate or cache.kv != "f16":
            raise ConfigError("sparse attention reads plain f16 keys; make the cache with kv='f16' and no rotation")
        at = cache.stored(layer)
        if len(q) < at.tokens:
            return cache.attend(layer, q, gate)
        scale = float(q.shape[2]) ** -0.5
        out, counts = sparse_attention(q, at.k, at.v, at.table, at.tokens, scale, self.options)
        self.counts.append(counts)
        return gate_output(out, gate, False)

    def densities(self) -> list[float]:
        """Share of the causal blocks that was read, layer by layer; waits for the device."""
        found = []
        for counts in self.counts:
            host = counts.get() if is_device(counts) else np.asarray(counts)
            heads, blocks = host.shape
            found.append(float(host.sum(dtype=np.int64)) / (heads * blocks * (blocks + 1) / 2))
        return found
