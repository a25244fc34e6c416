"""A prompt through layer after layer, with one attention a layer over all of it: to predict, to look on, to keep."""

from __future__ import annotations

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.models.cache.cache import Cache
from sp.models.layers.block import Tap
from sp.models.model import Model
from sp.models.passes.forward import Pace, Progress, checked
from sp.models.passes.layer_attention import LayerAttention, dense_attention
from sp.models.passes.walk import Walk, Watch

CHUNK_BY_LAYER = {"cpu": 2048, "cuda": 16384}
"""Tokens that are projected together: on the CPU what its caches like, on the device what fills it."""


def prefill_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    chunk: int | None = None,
    tap: Tap | None = None,
    watch: Watch | None = None,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    keep_kv: bool = True,
    progress: Progress | None = None,
) -> Floats:
    """Read a prompt layer by layer: all of it through layer 0, then all of it through layer 1, and so on.

    The same numbers as `prefill`, beyond rounding. Projections and feed-forward go chunk by chunk, attention once a
    layer. With ``keep_kv=False`` the pages of each layer are released after it, so a cache with ``layers=1`` is large
    enough; no token can be decoded from it afterwards.

    Parameters
    ----------
    watch : callable, optional
        See `Watch`; in the last layer it sees the queries of the last `rows`.
    attend : LayerAttention
        What attends in every layer.
    model, ids, positions, cache, chunk, tap, rows, keep_kv, progress
        See `prefill`; progress counts tokens x layers.

    Returns
    -------
    float32 (vocab,)
        Logits of the last token.
    """
    model.check_loaded()
    x, walk = _start(model, ids, positions, cache, chunk, rows, tap, watch, attend, progress)
    layers = model.config.layers
    for layer in range(layers):
        x = walk.layer(layer, x, rows if layer == layers - 1 else len(x))
        if not keep_kv:
            cache.release(layer)
    walk.pace.finish()
    logits: Floats = model.head(x[-1:])[0]
    return logits


def read_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    watch: Watch,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    keep_kv: bool = False,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Read a prompt for what its attention layers show, with the keys and values of one layer at a time.

    Layers from `depth` on are not run, and of the last one run only keys, values and the queries of the last `rows`
    tokens are computed. With `keep_kv` the cache, which is then one of those layers, goes on holding all of it, and
    more tokens can be read. Everything else is as in `prefill_by_layer`.
    """
    layers, depth = model.config.layers, checked_depth(model, depth)
    x, walk = _start(model, ids, positions, cache, chunk, rows, None, watch, attend, progress)
    for layer in range(depth):
        last = layer == depth - 1
        x = walk.layer(layer, x, rows if last else len(x), finish=not last)
        if not keep_kv:
            cache.release(layer)
    walk.pace.done(len(ids) * (layers - depth))
    walk.pace.finish()


def stream_by_layer(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    attend: LayerAttention = dense_attention,
    depth: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Read a prompt for its residual stream after the first `depth` layers, all of them by default.

    One layer's keys and values are held at a time. Everything else is as in `read_by_layer`.

    Returns
    -------
    float32 (n, hidden)
        Where the model is; what `Model.head` takes, if all layers were run.
    """
    layers, depth = model.config.layers, checked_depth(model, depth)
    x, walk = _start(model, ids, positions, cache, chunk, 1, None, None, attend, progress)
    for layer in range(depth):
        x = walk.layer(layer, x, len(x))
        cache.release(layer)
    walk.pace.done(len(ids) * (layers - depth))
    walk.pace.finish()
    return x


def checked_depth(model: Model, depth: int | None) -> int:
    """Layers to run, all by default; ConfigError if the model has fewer."""
    layers = model.config.layers
    depth = layers if depth is None else depth
    if not 1 <= depth <= layers:
        raise ConfigError(f"depth is {depth}; the model has layers 1 to {layers}")
    model.check_loaded(depth)
    return depth


def _start(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    chunk: int | None,
    rows: int,
    tap: Tap | None,
    watch: Watch | None,
    attend: LayerAttention,
    progress: Progress | None,
) -> tuple[Floats, Walk]:
    chunk = CHUNK_BY_LAYER[model.device] if chunk is None else chunk
    ids, positions = checked(model, ids, positions, cache, chunk, rows)
    pace = Pace(model, progress)
    walk = Walk(model, model.place(positions), cache, attend, chunk, pace, tap, watch)
    return model.embed(ids), walk
