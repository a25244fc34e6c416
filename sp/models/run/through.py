"""through: tokens through layers, one after the other; the loop of every executor that takes all tokens at once."""

from __future__ import annotations

from sp.arrays import Floats, Ints
from sp.models.cache.cache import Cache
from sp.models.network.model import Model
from sp.models.run.hooks import NO_HOOKS, Hooks


def through(
    model: Model,
    x: Floats,
    positions: Ints,
    cache: Cache,
    *,
    first: int = 0,
    stop: int | None = None,
    rows: int | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Floats:
    """Tokens through the layers `first` to `stop`, by default all that follow; a CUDA graph can capture it.

    Parameters
    ----------
    x : float32 (n, hidden)
        The stream of the next tokens of a sequence.
    positions : int64 (n,)
        Where the model is.
    rows : int, optional
        Compute the last layer of the model for so many of the last tokens alone.

    Returns
    -------
    float32 (n or rows, hidden)
    """
    last = model.config.layers - 1
    with cache.together(len(x)):
        for layer in range(first, last + 1 if stop is None else stop):
            asked = rows if layer == last else None
            x = model.layer(layer, x, positions, cache, rows=asked, on_attention=hooks.on_attention)
            if hooks.after_layer is not None:
                hooks.after_layer(layer, model.whole(x))
    return x
