"""passes: what reading a few tokens at once after a long context costs, as checking a draft does, beside one token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.bench.timing import spread
from sp.kernels import import_cupy
from sp.kernels.launch import launched_sources, reset_launched
from sp.models import Cache, Model, prefill


@dataclass(frozen=True)
class Pass:
    """Samples of one number of rows after one context.

    Attributes
    ----------
    rows, context : int
        Tokens read at once, and before.
    ms : tuple of float
        Milliseconds of each replay of the pass's CUDA graph, logits of all rows included.
    sources : tuple of str
        Kernels launched.
    """

    rows: int
    context: int
    ms: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def median(self) -> float:
        """Milliseconds."""
        return spread(self.ms).median


def time_passes(model: Model, rows: list[int], context: int, repeats: int, kv: str = "f16") -> Iterator[Pass]:
    """Read `context` random tokens, then time passes of each number of `rows` that follow it, on the device.

    Every pass is a CUDA graph, replayed `repeats` times; each replay reads further tokens, as generation would.
    """
    rng = np.random.default_rng(0)
    cupy = import_cupy()
    for count in rows:
        reset_launched()
        cache = model.new_cache(context + count * (repeats + 3), kv)
        prefill(model, rng.integers(0, model.config.vocab, context), np.arange(context), cache)
        ids = cupy.asarray(rng.integers(0, model.config.vocab, count), np.int32)
        positions = cupy.arange(context, context + count, dtype=np.int64)
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        cupy.cuda.get_current_stream().synchronize()
        with stream, cupy.cuda.using_allocator(pool.malloc):
            samples = _replays(model, cache, ids, positions, stream, repeats)
        yield Pass(count, context, samples, launched_sources())


def _replays(model: Model, cache: Cache, ids: Any, positions: Any, stream: Any, repeats: int) -> tuple[float, ...]:
    """Milliseconds of each replay, after one pass launch by launch, which compiles, and one replay."""
    events, count = import_cupy().cuda, len(ids)

    def read() -> None:
        x = model.embed(ids)
        with cache.together(count):
            for layer in range(model.config.layers):
                x = model.layer(layer, x, positions, cache)
        model.head(x)

    cache.reserve(count)
    read()
    cache.reserve(count)
    stream.begin_capture()
    read()
    graph = stream.end_capture()
    graph.launch(stream)
    pairs = []
    for _ in range(repeats):
        cache.reserve(count)
        cache.count(count)
        before, after = events.Event(), events.Event()
        before.record(stream)
        graph.launch(stream)
        after.record(stream)
        pairs.append((before, after))
    stream.synchronize()
    return tuple(float(events.get_elapsed_time(before, after)) for before, after in pairs)
