"""read_repeated: a prompt that one card reads, layer by layer, its launches planned for one layer and made again."""

from __future__ import annotations

from functools import partial

from sp.arrays import Ints
from sp.kernels import import_cupy
from sp.models.cache.striped import StripedCache, Stripes
from sp.models.layers.attention import Attention
from sp.models.model import Model
from sp.models.passes.forward import Pace, Progress, checked_prompt
from sp.models.passes.layer_attention import LayerAttention, dense_attention
from sp.models.passes.layerwise import CHUNK_BY_LAYER, checked_depth
from sp.models.passes.repeated_turns import Asked, RepeatedTurns, may_repeat, turns_of
from sp.models.passes.walk import Walk, Watch


def read_repeated(
    model: Model,
    ids: Ints,
    positions: Ints,
    watch: Watch,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    progress: Progress | None = None,
) -> bool:
    """Read a prompt as `read_by_layer` does into a cache that goes away, if that pays and can be done.

    It pays where a host takes longer to plan the launches of a layer than the device takes for it, which is so up to
    some ten thousand tokens. Keys, values and queries of two layers are held, and what a layer makes on its way: not
    under a limit of memory.

    Parameters
    ----------
    model, ids, positions, watch, attend, rows, depth, progress
        See `read_by_layer`; `watch` sees the queries of all tokens in the last layer, too.

    Returns
    -------
    bool
        Whether it was read. If not, nothing was done.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import load_model
    >>> from sp.pipeline.load import embedded
    >>> read_repeated(load_model(embedded("drafter")), np.arange(600), np.arange(600), print)  # on the CPU
    False
    """
    turns, depth = turns_of(model), checked_depth(model, depth)
    ids, positions = checked_prompt(model, ids, positions, CHUNK_BY_LAYER[model.device], rows)
    n = len(ids)
    if not (turns and may_repeat(model.config, attend, n) and Stripes.fits(n, 1, 1)):
        return False
    if import_cupy().get_default_memory_pool().get_limit():
        return False
    cache = StripedCache(model.config, Stripes(n, 1, 1), 0, device=model.device, math=model.arithmetic.attention)
    walk = Walk(model, model.place(positions), cache, attend, CHUNK_BY_LAYER[model.device], Pace(model, None))
    repeated, blocks = RepeatedTurns(walk, n, turns), model.trunk.blocks
    x, pace = model.embed(ids), Pace(model, progress)

    def enter(layer: int) -> Asked:
        mixer = blocks[layer].mixer
        assert isinstance(mixer, Attention)
        return walk.enter(mixer, blocks[layer], x, n, tell=False, into=repeated.queries(layer))

    def turn(layer: int, asked: Asked) -> Asked:
        mixer = blocks[layer].mixer
        assert isinstance(mixer, Attention)
        walk.leave(mixer, blocks[layer], x, attend(cache, layer, *asked))
        return enter(layer + 1)

    asked = enter(0)
    for layer in range(depth):
        watch(layer, asked[0], cache)
        if layer < depth - 1:
            asked = repeated.turn(layer, partial(turn, layer, asked))
        cache.release(layer)
        pace.done(n)
    pace.done(n * (model.config.layers - depth))
    pace.finish()
    return True
