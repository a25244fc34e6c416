"""through, the loop of every executor that takes all tokens at once, and who looks on at any: Hooks, Pace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.cache.carry import copy_out, wait
from sp.models.layer.steps import Flow, OnAttention
from sp.models.network.model import Model

AfterLayer = Callable[[int, Floats], None]
Progress = Callable[[int], None]
"""Takes what was finished since the last call: tokens, or of an executor that goes layer by layer tokens x layers. On
the CPU it is called after each layer of each chunk, if need be with 0. What it raises ends the work."""


@dataclass(frozen=True)
class Hooks:
    """What an executor calls.

    Attributes
    ----------
    on_attention : callable, optional
        Sees every attention layer before it attends: ``(layer, q, cache)``, with q (rows, heads, head_dim) of the last
        tokens of a pass, after RoPE and not rotated for the cache, and the cache with all their keys.
    after_layer : callable, optional
        Sees the residual stream after every layer: ``(layer, x)``, x (n, hidden) of the tokens of a pass, of the last
        layer of the `rows` that are computed. On the device it is written over afterwards.
    progress : callable, optional
        See `Progress`; told when work is done, not when it is queued.
    queues : hashable, optional
        Names what `on_attention` does, if on the device it launches kernels of `sp` alone; see `read_by_layer_on`.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import Hooks, load_model, prefill
    >>> from sp.session.loaded import embedded
    >>> model, ids, seen = load_model(embedded("drafter")), np.arange(9), []
    >>> _ = prefill(model, ids, ids, model.new_cache(9), hooks=Hooks(on_attention=lambda i, q, _: seen.append(q.shape)))
    >>> len(seen) == model.config.layers, seen[0]
    (True, (9, 4, 128))
    """

    on_attention: OnAttention | None = None
    after_layer: AfterLayer | None = None
    progress: Progress | None = None
    queues: Hashable | None = None


NO_HOOKS = Hooks()


class Pace:
    """Tells of progress when the work is done; the device stays one piece ahead."""

    def __init__(self, model: Model, progress: Progress | None) -> None:
        self._stream = import_cupy().cuda.get_current_stream() if progress and model.device == "cuda" else None
        self._arrived, self._progress = model.arrived, progress
        self._queued: list[tuple[Any, int]] = []

    def done(self, amount: int, ahead: int = 1) -> None:
        """One more piece is computed, or on the device queued; all are told of but so many of the last."""
        if self._progress is None:
            return
        if self._stream is None:
            if amount:
                self._progress(amount)
            return
        if amount:
            self._queued.append((self._stream.record(), amount))
        while len(self._queued) > ahead:
            event, amount = self._queued.pop(0)
            self._arrived(event)
            self._progress(amount)


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
    layers, last = model.trunk.layers, model.config.layers - 1
    flow = Flow(x, positions, cache, len(x), hooks.on_attention)
    with cache.together(len(x)):
        for index in range(first, last + 1 if stop is None else stop):
            if index == last and rows is not None:
                flow.rows = rows
            x = model.pass_layer(layers[index], flow)
            if hooks.after_layer is not None:
                hooks.after_layer(index, model.whole(x))
            if hooks.progress is not None and model.device == "cpu":
                hooks.progress(0)  # a place to stop at: there a chunk through all layers of a large model takes minutes
    return x


def looked_at(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of one place, on the host, to be looked at and not kept: pinned memory is scarce. Those of the device are
    as they are by then, and all are waited for at once."""
    if not arrays or not is_device(arrays[0]):
        return list(arrays)
    arrays = [one if one.flags.c_contiguous else import_cupy().ascontiguousarray(one) for one in arrays]
    ends = np.cumsum([-(-one.nbytes // 8) * 8 for one in arrays])
    pinned = np.frombuffer(import_cupy().cuda.alloc_pinned_memory(int(ends[-1])), np.uint8, int(ends[-1]))
    found = []
    for one, start in zip(arrays, (0, *ends), strict=False):
        found.append(pinned[start : start + one.nbytes].view(one.dtype).reshape(one.shape))
        copy_out(one, found[-1])
    wait()
    return found
