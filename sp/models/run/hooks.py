"""run_layers, the loop of every executor in which all tokens pass a layer together, and Hooks that observe any
executor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.cache.transfer import copy_out, wait
from sp.models.layer.steps import Flow, OnAttention
from sp.models.network.model import Model

AfterLayer = Callable[[int, Floats], None]
Progress = Callable[[int], None]
"""Called with the work finished since the last call: tokens, or tokens x layers in a layer-major executor. On the CPU
it is called after each layer of each chunk, possibly with 0. An exception that it raises ends the work."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of an executor.

    Attributes
    ----------
    on_attention : callable, optional
        Called in every attention layer before it attends: ``(layer, q, cache)``, with q (rows, heads, head_dim) of the
        last tokens of a pass, after RoPE and not rotated for the cache, and the cache with all their keys.
    after_layer : callable, optional
        Called after every layer: ``(layer, x)``, with the residual stream x (n, hidden) of the tokens of a pass, in the
        last layer of the computed `rows`. On the device x is overwritten afterwards.
    progress : callable, optional
        See `Progress`; called when work is done, not when it is queued.
    replay_key : hashable, optional
        Identifies the work of `on_attention`, if on the device it launches only kernels of `sp`; see
        `read_context_parallel`.

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
    replay_key: Hashable | None = None


NO_HOOKS = Hooks()


class ProgressReporter:
    """Reports progress once work is done; the device stays one piece ahead of the reports."""

    def __init__(self, model: Model, progress: Progress | None) -> None:
        self._stream = import_cupy().cuda.get_current_stream() if progress and model.device == "cuda" else None
        self._wait_for_event, self._progress = model.wait_for_event, progress
        self._queued: list[tuple[Any, int]] = []

    def done(self, amount: int, ahead: int = 1) -> None:
        """Count a piece of work, computed or on the device queued; report all pieces except the last `ahead`."""
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
            self._wait_for_event(event)
            self._progress(amount)


def run_layers(
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
    """Pass tokens through the layers `first` to `stop`, by default all that follow; a CUDA graph can capture it.

    Parameters
    ----------
    x : float32 (n, hidden)
        Stream of the next tokens of a sequence.
    positions : int64 (n,)
        RoPE positions, where the model is.
    rows : int, optional
        Compute the last layer of the model for so many of the last tokens only.

    Returns
    -------
    float32 (n or rows, hidden)
    """
    layers, last = model.weights.layers, model.config.layers - 1
    flow = Flow(x, positions, cache, len(x), hooks.on_attention)
    with cache.together(len(x)):
        for index in range(first, last + 1 if stop is None else stop):
            if index == last and rows is not None:
                flow.rows = rows
            x = model.pass_layer(layers[index], flow)
            if hooks.after_layer is not None:
                hooks.after_layer(index, model.full_stream(x))
            if hooks.progress is not None and model.device == "cpu":
                hooks.progress(0)  # a chance to cancel: on the CPU a chunk may take minutes
    return x


def counts_on_host(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays of one place on the host, to be read and not kept, because pinned memory is scarce. Waits once for
    all of them."""
    if not arrays or not is_device(arrays[0]):
        return list(arrays)
    arrays = [array if array.flags.c_contiguous else import_cupy().ascontiguousarray(array) for array in arrays]
    ends = np.cumsum([-(-array.nbytes // 8) * 8 for array in arrays])
    pinned = np.frombuffer(import_cupy().cuda.alloc_pinned_memory(int(ends[-1])), np.uint8, int(ends[-1]))
    views = []
    for array, start in zip(arrays, (0, *ends), strict=False):
        views.append(pinned[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
        copy_out(array, views[-1])
    wait()
    return views
