"""Hooks: who looks on while an executor drives tokens through layers, and is told how far it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sp.arrays import Floats
from sp.kernels import import_cupy
from sp.models.layer.steps import OnAttention
from sp.models.network.model import Model

AfterLayer = Callable[[int, Floats], None]
Progress = Callable[[int], None]
"""Takes what was finished since the last call: tokens, or of an executor that goes layer by layer tokens x layers."""


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

    def done(self, amount: int) -> None:
        """One more piece is computed, or on the device queued."""
        if self._progress is None or not amount:
            return
        if self._stream is None:
            self._progress(amount)
            return
        self._queued.append((self._stream.record(), amount))
        if len(self._queued) > 1:
            self._wait()

    def finish(self) -> None:
        """Tell of all that is left."""
        while self._queued:
            self._wait()

    def _wait(self) -> None:
        event, amount = self._queued.pop(0)
        self._arrived(event)
        assert self._progress is not None
        self._progress(amount)
