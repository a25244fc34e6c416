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
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.key_basis import KeyBasis
from sp.quant.cached import K5

SKIP = 16
"""First tokens of a run that count for nothing: a model treats them like no others."""
NEAR = 256
"""Place of a token up to which all count alike; from there on, the less the further back: what reads prompts of one
length gains as much as what reads twice as long ones."""


def measured_layers(model: Model) -> tuple[int, ...]:
    """Attention layers that are loaded and whose keys come in blocks of `K5`."""
    config = model.config
    known = [layer for layer in config.attention_layers if layer < model.depth]
    return tuple(layer for layer in known if config.heads_of(layer).head_dim % K5.block_size == 0)


def measured_bases(model: Model, runs: Iterable[Ints], progress: Progress | None = None) -> dict[int, KeyBasis]:
    """A basis for every layer of `measured_layers`, on the host.

    Keys and queries count as they meet: behind RoPE, from an exact cache. The mean of a channel of keys, the root mean
    square about it, and that of the queries of all heads that share a head of keys are over all tokens but the first of
    each run, weighted by place; sums are in float64. Bases are then put around the mean key of the first tokens. Layers
    that cap scores, or have sinks, where a number that all scores lack is no matter of indifference, have no offset.

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
            found, old = _sums(q, cache.keys(layer)), sums.get(layer)
            sums[layer] = found if old is None else [one + more for one, more in zip(old, found, strict=True)]

    kv = "f32" if model.device == "cpu" else "f16"
    for ids in runs if wanted else ():
        cache, hooks = model.new_cache(len(ids), kv, layers=1), Hooks(on_attention=look, progress=progress)
        read_by_layer(model, ids, np.arange(len(ids)), cache, hooks, rows=len(ids), depth=model.depth)
    blocks = model.trunk.blocks
    return {layer: _basis(found, blocks[layer].spec.any_shift) for layer, found in sorted(sums.items())}


def _sums(q: Any, k: Any) -> list[Any]:
    """Runs, their first keys, weights, and sums weighted so: of keys, their squares and squares of queries, float64
    (kv_heads, d)."""
    tokens, kv_heads, d = k.shape
    xp = array_module(k)
    weights = 1 / xp.maximum(xp.arange(SKIP, tokens), NEAR).astype(np.float64)
    first, k = k[0].astype(np.float64), k[SKIP:].astype(np.float64)
    asked = (
        np.square(q[SKIP:].astype(np.float32)).reshape(tokens - SKIP, kv_heads, -1, d).mean(axis=2, dtype=np.float64)
    )
    return [1, first, weights.sum(keepdims=True), *(xp.tensordot(weights, one, 1) for one in (k, k * k, asked))]


def _basis(sums: Sequence[Any], centred: bool) -> KeyBasis:
    count, first, weight, keys, squares, asked = sums[0], *map(on_host, sums[1:])
    mean: Doubles = keys / weight * centred
    about = np.sqrt(np.maximum(squares / weight - mean * mean, 0))
    found = KeyBasis.measured(mean, about, np.sqrt(asked / weight))
    return found.around((first / count).astype(np.float32)) if centred else found
