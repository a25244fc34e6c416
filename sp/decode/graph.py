"""GraphDecoder: one decoding step as a CUDA graph, replayed for every token.

A step of a large model is hundreds of short kernels; launched one by one the host is slower than the device. In the
graph the chosen token, its position and the token counts of the cache live on the device and move on there, so every
replay is the same. The host only starts replays, takes pages for the cache and reads tokens as they appear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sp.decode.choose import Chooser
from sp.errors import PromptError
from sp.kernels import import_cupy
from sp.kernels.specs.sequence import NEXT_STEP
from sp.models import Cache, Model
from sp.models.run.captured_graph import CapturedGraph, CaptureStream
from sp.models.run.through import through
from sp.ops.sampling.sample import argmax


class GraphDecoder:
    """Decoding on the device, of one answer after the other with the same cache.

    Greedily the graph holds all of a step; with a chooser it ends with the logits, from which that chooses.

    Parameters
    ----------
    model : Model
        On the device.
    limit : int
        Tokens of the longest answer.
    eager : bool
        Launch every step kernel by kernel, as a reference.
    """

    def __init__(self, model: Model, cache: Cache, limit: int, *, eager: bool = False) -> None:
        cupy = import_cupy()
        self._model, self._cache, self._last_position = model, cache, -1
        self._lane = CaptureStream()
        how: dict[str, Any] = {"eager": eager, "agreed": model.agreed, "cache": cache}
        self._read_next: CapturedGraph[None] = CapturedGraph(**how)
        self._next_logits: CapturedGraph[Any] = CapturedGraph(**how)
        self._arrived = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * limit), np.int32, limit)
        self._token, self._history = cupy.empty(1, np.int32), cupy.empty(limit, np.int32)
        self._position, self._step = cupy.zeros(1, np.int64), cupy.zeros(1, np.int32)

    def tokens(self, logits: Any, position: int, limit: int, chooser: Chooser | None = None) -> Iterator[int]:
        """Each token as soon as the host knows it.

        While the host waits for a token, but for the first, the device is at work on the next one, so whoever stops
        early finds the cache one token further on; not so with a chooser, which may have to be told first.

        Parameters
        ----------
        logits : cupy float32 (vocab,)
            Of the last token read; from them the first token is chosen.
        position : int
            Of the first token generated.
        limit : int
            Most tokens to generate; the cache needs room for all but the last.
        chooser : Chooser, optional
            Takes the likeliest token if left out.
        """
        self._last_position = position - 1
        self._position.fill(position - 1)
        self._step.fill(0)
        ahead = 2 if chooser is None else 1
        with self._lane.working():
            self._choose(logits.reshape(1, -1), chooser)
        waiting, launched = [self._fetch(0)], 1
        try:
            for number in range(limit):
                # The first token is wanted at once: to launch a step takes the host longer than the token will.
                while launched < min(number + (ahead if number else 1), limit):
                    self._advance(chooser)
                    waiting.append(self._fetch(launched))
                    launched += 1
                self._model.arrived(waiting.pop(0))
                yield int(self._arrived[number])
        finally:
            self._lane.stream.synchronize()  # the cache may be let go of now

    @property
    def refused(self) -> str | None:
        """Why steps are not in a graph; only where cards share the model, otherwise that is an error."""
        return self._read_next.refused or self._next_logits.refused

    def end(self) -> None:
        """Let go of the graph and its memory."""
        self._lane.stream.synchronize()
        self._read_next.clear()
        self._next_logits.clear()
        self._lane.end()

    def _fetch(self, number: int) -> Any:
        """Copy a token to the host; the event that marks its arrival."""
        runtime = import_cupy().cuda.runtime
        source, target = self._history[number:].data.ptr, self._arrived[number:].ctypes.data
        runtime.memcpyAsync(target, source, 4, runtime.memcpyDeviceToHost, self._lane.stream.ptr)
        return self._lane.stream.record()

    def _advance(self, chooser: Chooser | None) -> None:
        """Read the newest token and choose the next one: the first time launch by launch, then by replays."""
        self._last_position += 1
        if self._last_position >= self._model.config.context:
            raise PromptError(
                f"position {self._last_position} is outside the model's context of {self._model.config.context} "
                "tokens; ask for a shorter answer"
            )
        with self._lane.working():
            self._cache.reserve(1)
            graph: CapturedGraph[Any] = self._read_next if chooser is None else self._next_logits
            if graph.ready:
                self._cache.count(1)
            if chooser is None:
                self._read_next(self._read_and_choose)
            else:
                self._choose(self._next_logits(self._read), chooser)

    def _read_and_choose(self) -> None:
        """One step, with the likeliest token."""
        self._choose(self._read(), None)

    def _read(self) -> Any:
        """The token through all layers; logits (1, vocab) of the next."""
        x = self._model.embed(self._token)
        return self._model.head(through(self._model, x, self._position, self._cache))

    def _choose(self, logits: Any, chooser: Chooser | None) -> None:
        """A token of logits (1, vocab) is the next one."""
        token = argmax(logits) if chooser is None else chooser.choose(logits)
        NEXT_STEP.launch((1,), token, self._token, self._position, self._history, self._step)
