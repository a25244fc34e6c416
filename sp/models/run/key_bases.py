"""measured_bases: channel statistics of a model's keys and queries, measured while it reads text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.network.model import Model
from sp.models.run.hooks import Hooks, Progress
from sp.models.run.layer_major import read_layer_major
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.key_basis import KeyBasis
from sp.quant.cached import BLOCK

SKIP = 16
"""First tokens of a run, which are ignored: their keys are unlike all others (attention sinks)."""
NEAR = 256
"""Position up to which all tokens have equal weight; later ones weigh less, in inverse proportion to their position, so
that each doubling of the length counts the same."""


def measured_layers(model: Model) -> tuple[int, ...]:
    """Return the loaded attention layers whose keys can be stored in a basis: whole blocks of 64."""
    config = model.config
    loaded = [layer for layer in config.attention_layers if layer < model.depth]
    return tuple(layer for layer in loaded if config.heads_of(layer).head_dim % BLOCK == 0)


def measured_bases(model: Model, runs: Iterable[Ints], progress: Progress | None = None) -> dict[int, KeyBasis]:
    """Measure a basis for every layer of `measured_layers`, on the host.

    Keys and queries are taken after RoPE, from an exact cache. The mean of each key channel, the root mean square about
    it, and that of the queries of all heads that share a key head are averaged over all tokens but the first of each
    run, weighted by position; sums are in float64. Bases name the mean key of the first tokens as their `first`. Layers
    with a soft cap or sinks have no offset, because there a common shift of all scores changes the result.

    Parameters
    ----------
    runs : iterable of int64 (n,)
        Token ids, each run read by itself from position 0: real texts, some of them long. Random ids, or one short
        text, give bases from which other texts gain less.
    progress : callable, optional
        See `Hooks`; a run counts for its tokens times all layers.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.session.loaded import embedded
    >>> model = load_model(embedded("drafter"))
    >>> bases = measured_bases(model, [np.arange(40) + 200])
    >>> len(bases) == model.config.layers, bases[0].scale.shape
    (True, (2, 128))
    """
    sums, layers = dict[int, list[Any]](), frozenset(measured_layers(model))

    def look(layer: int, q: Floats, cache: Cache) -> None:
        if layer in layers and len(q) > SKIP:
            new, old = _sums(q, cache.keys(layer)), sums.get(layer)
            sums[layer] = new if old is None else [total + more for total, more in zip(old, new, strict=True)]

    kv = "f32" if model.device == "cpu" else "f16"
    for ids in runs if layers else ():
        cache, hooks = model.new_cache(len(ids), kv, layers=1), Hooks(on_attention=look, progress=progress)
        read_layer_major(model, ids, np.arange(len(ids)), cache, hooks, rows=len(ids), depth=model.depth)
    blocks = model.weights.blocks
    return {layer: _basis(total, blocks[layer].spec.any_shift) for layer, total in sorted(sums.items())}


def _sums(q: Any, k: Any) -> list[Any]:
    """Return the number of runs (1), the first key, the sum of weights, and weighted sums of keys, their squares and
    the squares of queries, float64 (kv_heads, d)."""
    tokens, kv_heads, d = k.shape
    xp = array_module(k)
    weights = 1 / xp.maximum(xp.arange(SKIP, tokens), NEAR).astype(np.float64)
    first, k = k[0].astype(np.float64), k[SKIP:].astype(np.float64)
    query_squares = (
        np.square(q[SKIP:].astype(np.float32)).reshape(tokens - SKIP, kv_heads, -1, d).mean(axis=2, dtype=np.float64)
    )
    return [
        1,
        first,
        weights.sum(keepdims=True),
        *(xp.tensordot(weights, rows, 1) for rows in (k, k * k, query_squares)),
    ]


def _basis(sums: Sequence[Any], centred: bool) -> KeyBasis:
    count, first, weight, keys, squares, query_squares = sums[0], *map(on_host, sums[1:])
    mean: Doubles = keys / weight * centred
    deviation = np.sqrt(np.maximum(squares / weight - mean * mean, 0))
    basis = KeyBasis.measured(mean, deviation, np.sqrt(query_squares / weight))
    return replace(basis, first=(first / count).astype(np.float32)) if centred else basis
