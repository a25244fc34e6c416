"""GraphDecoder: one decoding step as a CUDA graph, replayed for every token.

A step of a large model is hundreds of short kernels; launched one by one the host is slower than the device. In the
graph the chosen token, its position and the token counts of the cache live on the device and move on there, so every
replay is the same. The host only starts replays, takes pages for the cache and reads tokens as they appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from sp.errors import PromptError
from sp.kernels import import_cupy
from sp.kernels.declared.sequence import NEXT_STEP
from sp.models import Cache, Model
from sp.ops.sample import argmax


class GraphDecoder:
    """Greedy decoding of one sequence on the device.

    Parameters
    ----------
    model : Model
        On the device.
    cache : Cache
        Holds what was read before.
    logits : cupy float32 (vocab,)
        Of the last token read; their argmax is the first token.
    position : int
        Of the first token generated.
    limit : int
        Most tokens to generate; the cache needs room for all but the last.
    eager : bool
        Launch every step kernel by kernel, as a reference.
    """

    _lending: ClassVar[list[Any]] = []
    """Pools that outlive their decoders, for others still use memory of theirs."""

    def __init__(
        self, model: Model, cache: Cache, logits: Any, position: int, limit: int, *, eager: bool = False
    ) -> None:
        cupy = import_cupy()
        self._model, self._cache, self._limit, self._eager = model, cache, limit, eager
        self._last_position = position - 1
        # A stream of its own, for only such a one can be captured, and memory that no other work is ever given.
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._pool = cupy.cuda.MemoryPool(_from_here(cupy.cuda))
        self._graph: Any = None
        self._warm = False
        self._arrived = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * limit), np.int32, limit)
        with self._working():
            self._token = cupy.empty(1, np.int32)
            self._position = cupy.full(1, position - 1, np.int64)
            self._history = cupy.empty(limit, np.int32)
            self._step = cupy.zeros(1, np.int32)
            self._choose(logits.reshape(1, -1))

    def tokens(self) -> Iterator[int]:
        """Each token as soon as the host knows it, up to the limit.

        While the host waits for a token, but for the first, the device is at work on the next one, so whoever stops
        early finds the cache one token further on.
        """
        waiting, launched = [self._fetch(0)], 1
        try:
            for number in range(self._limit):
                # The first token is wanted at once: to launch a step takes the host longer than the token will.
                while launched < min(number + (2 if number else 1), self._limit):
                    self._advance()
                    waiting.append(self._fetch(launched))
                    launched += 1
                waiting.pop(0).synchronize()
                yield int(self._arrived[number])
        finally:
            self._stream.synchronize()  # nothing may run on in memory that is let go of now
            self._end()

    def _end(self) -> None:
        """Give all memory back: pieces of one block hold one another, and a pool that ends with some loses the block.

        What kernels keep for themselves, such as counters, may have come from here on its first use; it stays, and so
        must the pool.
        """
        self._graph = self._token = self._position = self._history = self._step = None
        self._pool.free_all_blocks()
        if self._pool.used_bytes():
            self._lending.append(self._pool)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Work goes to the stream of this decoder and takes memory from its pool.

        It runs after what the current stream was given and before what it is given next, since kernels that count
        their finished blocks share the counters.
        """
        cuda = import_cupy().cuda
        current = cuda.get_current_stream()
        self._stream.wait_event(current.record())
        with self._stream, cuda.using_allocator(self._pool.malloc):
            yield
        current.wait_event(self._stream.record())

    def _fetch(self, number: int) -> Any:
        """Copy a token to the host; the event that marks its arrival."""
        runtime = import_cupy().cuda.runtime
        source, target = self._history[number:].data.ptr, self._arrived[number:].ctypes.data
        runtime.memcpyAsync(target, source, 4, runtime.memcpyDeviceToHost, self._stream.ptr)
        return self._stream.record()

    def _advance(self) -> None:
        """Read the newest token and choose the next one: the first time launch by launch, then by replays."""
        self._last_position += 1
        if self._last_position >= self._model.config.context:
            raise PromptError(
                f"position {self._last_position} is outside the model's context of {self._model.config.context} "
                "tokens; ask for a shorter answer"
            )
        with self._working():
            self._cache.reserve(1)
            if self._graph is not None:
                self._cache.count(1)
                self._graph.launch(self._stream)
            elif self._eager or not self._warm:
                self._read()  # compiles kernels and fills the pool, which a capture cannot do
                self._warm = True
            else:
                self._graph = self._captured()  # moves the host's counts, as if it had run
                self._graph.launch(self._stream)

    def _captured(self) -> Any:
        self._stream.begin_capture()
        try:
            self._read()
        except BaseException:
            with suppress(Exception):
                self._stream.end_capture()
            raise
        return self._stream.end_capture()

    def _read(self) -> None:
        """One step: the token through all layers."""
        x = self._model.embed(self._token)
        with self._cache.together(1):
            for layer in range(self._model.config.layers):
                x = self._model.layer(layer, x, self._position, self._cache)
        self._choose(self._model.head(x))

    def _choose(self, logits: Any) -> None:
        """The likeliest token of logits (1, vocab) is the next one."""
        NEXT_STEP.launch((1,), argmax(logits), self._token, self._position, self._history, self._step)


def _from_here(cuda: Any) -> Callable[[int], Any]:
    """The present allocator, on the present stream whatever stream asks.

    A pool keeps what each stream gave back apart, and that of a decoder goes with the decoder.
    """
    source, home = cuda.get_allocator(), cuda.get_current_stream()

    def malloc(size: int) -> Any:
        with home:
            return source(size)

    return malloc
