"""measured_bases: how the channels of a model's keys and queries lie, seen while it reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.network.model import Model
from sp.models.run.hooks import Hooks, Progress
from sp.models.run.layer_major import read_by_layer
from sp.ops.array_module import on_host
from sp.ops.attention.key_basis import KeyBasis
from sp.quant.cached import K5

SKIP = 16
"""First tokens of a run that count for nothing: a model treats them like no others."""


def measured_layers(model: Model) -> tuple[int, ...]:
    """Attention layers that are loaded and whose keys come in blocks of `K5`."""
    config = model.config
    known = [layer for layer in config.attention_layers if layer < model.depth]
    return tuple(layer for layer in known if config.heads_of(layer).head_dim % K5.block_size == 0)


def measured_bases(model: Model, runs: Iterable[Ints], progress: Progress | None = None) -> dict[int, KeyBasis]:
    """A basis for every layer of `measured_layers`, on the host.

    Keys and queries count as they meet: behind RoPE, from an exact cache. The mean of a channel of keys, the root mean
    square about it, and that of the queries of all heads that share a head of keys are over all tokens but the first of
    each run; sums are in float64. Where scores must not be shifted zero stands for the mean.

    Parameters
    ----------
    runs : iterable of int64 (n,)
        Token ids, each run read for itself from position 0: real texts, some of them long. Random ids, and one short
        text, give bases that other texts gain less by.
    progress : callable, optional
        See `Hooks`; a run counts for its tokens times all layers.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.session.loaded import embedded
    >>> model = load_model(embedded("drafter"))
    >>> found = measured_bases(model, [np.arange(40) + 200])
    >>> len(found) == model.config.layers, found[0].scale.shape
    (True, (2, 128))
    """
    sums, wanted = dict[int, list[Any]](), frozenset(measured_layers(model))

    def look(layer: int, q: Floats, cache: Cache) -> None:
        if layer in wanted and len(q) > SKIP:
            found, old = _sums(q[SKIP:], cache.keys(layer)[SKIP:]), sums.get(layer)
            sums[layer] = found if old is None else [one + more for one, more in zip(old, found, strict=True)]

    kv = "f32" if model.device == "cpu" else "f16"
    for ids in runs if wanted else ():
        cache, hooks = model.new_cache(len(ids), kv, layers=1), Hooks(on_attention=look, progress=progress)
        read_by_layer(model, ids, np.arange(len(ids)), cache, hooks, rows=len(ids), depth=model.depth)
    blocks = model.trunk.blocks
    return {layer: _basis(found, blocks[layer].spec.any_shift) for layer, found in sorted(sums.items())}


def _sums(q: Any, k: Any) -> list[Any]:
    """Tokens, and sums over them: of keys, their squares and squares of queries, float64 (kv_heads, d)."""
    tokens, kv_heads, d = k.shape
    k = k.astype(np.float64)
    asked = np.square(q.astype(np.float32)).sum(axis=0, dtype=np.float64).reshape(kv_heads, -1, d).mean(axis=1)
    return [tokens, k.sum(axis=0), np.square(k).sum(axis=0), asked]


def _basis(sums: Sequence[Any], shifted: bool) -> KeyBasis:
    tokens, keys, squares, asked = sums[0], *map(on_host, sums[1:])
    mean: Doubles = keys / tokens * shifted
    around = np.sqrt(np.maximum(squares / tokens - mean * mean, 0))
    return KeyBasis.measured(mean, around, np.sqrt(asked / tokens))
