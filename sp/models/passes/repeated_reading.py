"""read_repeated: a prompt that one card reads, layer by layer, its launches planned for one layer and made again."""

from __future__ import annotations

from sp.arrays import Ints
from sp.kernels import import_cupy
from sp.models.cache.striped import StripedCache, Stripes
from sp.models.model import Model
from sp.models.passes.forward import Pace, Progress, checked_prompt
from sp.models.passes.layer_attention import LayerAttention, dense_attention
from sp.models.passes.layer_parts import LayerParts, parts_of
from sp.models.passes.layerwise import CHUNK_BY_LAYER, checked_depth
from sp.models.passes.repeated_layers import Asked, RepeatedLayers, Room, may_repeat, room_for
from sp.models.passes.walk import Walk, Watch
from sp.quant import Math

MOST_ALONE = {Math.BF16: 8192 * 1024, Math.FP8: 8192 * 1024, Math.INT8: 16384 * 1024}
"""Values of the residual stream of the longest prompt that is read so, by what products are made in: what is recorded
is planned before the device begins, which otherwise goes on beside. By a drafter of 0.6B an H100 with a slow host took
34, 49 and 60 ms for 2,048, 8,192 and 16,384 tokens in int8, and so takes 21, 27 and 43; in BF16 27, 40 and 43, and so
16, 26 and 45."""


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

    It pays where a host takes longer to plan the launches of a layer than the device takes for it: see `MOST_ALONE`.
    Keys, values and queries of two layers are held, and what a layer makes on its way: not under a limit of memory.
    What is read is the same to the bit.

    Parameters
    ----------
    model, ids, positions, watch, attend, rows, depth, progress
        See `read_by_layer`.

    Returns
    -------
    bool
        Whether it was read. If not, nothing was done.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import load_model
    >>> from sp.session.loaded import embedded
    >>> read_repeated(load_model(embedded("drafter")), np.arange(600), np.arange(600), print)  # on the CPU
    False
    """
    n, depth = len(ids), checked_depth(model, depth)
    most = MOST_ALONE[model.arithmetic.math]
    if not (may_repeat(model.config, attend, n, most) and Stripes.fits(n, 1, 1) and (parts := parts_of(model))):
        return False
    if import_cupy().get_default_memory_pool().get_limit():
        return False
    ids, positions = checked_prompt(model, ids, positions, CHUNK_BY_LAYER[model.device], rows)
    with room_for(parts) as room:
        _read(model, ids, positions, watch, attend, rows, depth, progress, parts, room)
    return True


def _read(
    model: Model,
    ids: Ints,
    positions: Ints,
    watch: Watch,
    attend: LayerAttention,
    rows: int,
    depth: int,
    progress: Progress | None,
    parts: list[LayerParts],
    room: Room | None,
) -> None:
    """See `read_repeated`; nothing is left in the room."""
    n = len(ids)
    cache = StripedCache(model.config, Stripes(n, 1, 1), 0, device=model.device, math=model.arithmetic.attention)
    walk = Walk(model, model.place(positions), cache, attend, CHUNK_BY_LAYER[model.device], Pace(model, None))
    x, pace = model.embed(ids), Pace(model, progress)
    repeated = RepeatedLayers(walk, x, 0, parts, room)

    def enter(layer: int) -> Asked:
        if layer == depth - 1:
            return walk.enter(layer, x, min(rows, n), tell=False)
        return repeated.enter(layer)

    asked = enter(0)
    for layer in range(depth):
        watch(layer, asked[0], cache)
        if layer < depth - 1:
            repeated.leave(layer, repeated.attend(layer, asked))
            asked = enter(layer + 1)
        cache.release(layer)
        pace.done(n)
    pace.done(n * (model.config.layers - depth))
    pace.finish()
