"""prefill and decode_step: all layers for the tokens at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.kernels import import_cupy
from sp.models.cache.cache import Cache
from sp.models.layers.block import Tap
from sp.models.model import Model
from sp.models.passes.gaps import Gaps, cross_gap, gap_lengths
from sp.models.passes.prefill_graphs import Begun, PrefillGraphs
from sp.quant import Math

After = Callable[[int, Floats], None]
"""Sees the residual stream after every layer: (layer, x (n, hidden)), of the last layer only the `rows` computed."""

CHUNK = {"cpu": 1024, "cuda": 8192}
"""Tokens that go through a layer together: on the CPU what its caches like, on the device what fills it."""


def chunk_tokens(device: str, math: Math) -> int:
    """`CHUNK`, twice that on the device where weights are rounded for every chunk.

    Examples
    --------
    >>> chunk_tokens("cuda", Math.BF16), chunk_tokens("cuda", Math.INT8), chunk_tokens("cpu", Math.INT8)
    (8192, 16384, 1024)
    """
    return CHUNK[device] * (2 if device == "cuda" and math is not Math.BF16 else 1)


Progress = Callable[[int], None]
"""Takes what was finished since the last call: tokens, or in a prefill by layer tokens x layers."""


def prefill(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    chunk: int | None = None,
    tap: Tap | None = None,
    after: After | None = None,
    rows: int = 1,
    gaps: Gaps = "compact",
    progress: Progress | None = None,
    graphs: PrefillGraphs | None = None,
) -> Floats:
    """Read a prompt chunk by chunk, each through all layers, and predict the token after it.

    The last layer computes keys, values and states for every token, but its output only for the last `rows`.

    Parameters
    ----------
    model : Model
    ids, positions : int64 (n,)
        Tokens and where RoPE puts them. Positions may have gaps: each token sees those before it in the array.
    cache : Cache
        May hold earlier tokens of the same sequence.
    chunk : int, optional
        Tokens that go through a layer together; a good number by default. The result does not depend on it, beyond
        rounding.
    tap : callable, optional
        See `Tap`; called once a chunk and attention layer.
    after : callable, optional
        See `After`; called once a chunk and layer. On the device the stream is overwritten afterwards.
    rows : int
        How many of the last tokens pass the whole last layer. A tap that wants the queries of N last tokens in
        the last layer asks for N.
    gaps : {"compact", "reset", "decay"}
        What recurrent layers do where positions have gaps, see `sp.models.passes.gaps`; attention has no part in it.
        In all but the first way every run between gaps goes through the layers alone.
    progress : callable, optional
    graphs : PrefillGraphs, optional
        Of the same model and cache: takes the runs that it can as CUDA graphs. Not with `tap` or `after`, which look
        on launch by launch.

    Returns
    -------
    float32 (vocab,)
        Logits of the last token, where the model is. Work on the device may still be under way.

    Raises
    ------
    PromptError
        For an empty prompt, ids outside the vocabulary, positions that do not match or pass the context, a full
        or released cache.
    """
    model.check_loaded()
    graphs = graphs if tap is None and after is None else None
    if chunk is None:
        chunk = chunk_tokens(model.device, model.arithmetic.math)
        chunk = chunk if graphs is None else graphs.chunk(chunk)
    ids, positions = checked(model, ids, positions, cache, chunk, rows)
    crossed = {} if gaps == "compact" else gap_lengths(positions)
    pace, x = Pace(model, progress), np.empty((0, model.config.hidden), np.float32)
    for part, wanted in slices(len(ids), chunk, rows, crossed):
        if part.start in crossed:
            cross_gap(model, cache, crossed[part.start], gaps)
        with model.queueing() if part.stop - part.start > 1 else nullcontext():
            x = _through(model, ids[part], positions[part], cache, wanted, graphs, tap, after)
        pace.done(part.stop - part.start)
    pace.finish()
    logits: Floats = model.head(x[-1:])[0]
    return logits


def _through(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    rows: int,
    graphs: PrefillGraphs | None,
    tap: Tap | None,
    after: After | None,
) -> Floats:
    """Tokens of a chunk through all layers: the stream (rows, hidden) of the last of them."""
    begun = None if graphs is None else graphs.begin(ids, positions)
    if begun is None:
        begun, first = Begun(model.embed(ids), model.place(positions)), 0
    else:
        first = model.config.layers - 1
    x = begun.x
    with cache.together(len(x)):
        for layer in range(first, model.config.layers):
            last = layer == model.config.layers - 1
            x = model.layer(layer, x, begun.positions, cache, rows=rows if last else None, tap=tap)
            if after is not None:
                after(layer, model.whole(x))
    return x


def decode_step(model: Model, token: int, position: int, cache: Cache, *, tap: Tap | None = None) -> Floats:
    """Read one more token and predict the next: logits (vocab,). Errors are those of `prefill`."""
    return prefill(model, np.array([token]), np.array([position]), cache, tap=tap)


class Pace:
    """Tells of progress when the work is done, not when it is queued; the device stays one piece ahead."""

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


def slices(n: int, chunk: int, rows: int, cuts: Iterable[int] = ()) -> list[tuple[slice, int]]:
    """Slices of at most `chunk` tokens, none across a cut, each with how many of its are among the last `rows`."""
    starts = sorted({*range(0, n, chunk), *cuts})
    parts = [slice(start, stop) for start, stop in pairwise([*starts, n])]
    return [(s, min(max(s.stop - (n - rows), 0), s.stop - s.start)) for s in parts]


def checked(model: Model, ids: Ints, positions: Ints, cache: Cache, chunk: int, rows: int) -> tuple[Ints, Ints]:
    """`checked_prompt`, and PromptError unless the cache has room for it."""
    ids, positions = checked_prompt(model, ids, positions, chunk, rows)
    if cache.tokens + ids.size > cache.capacity:
        raise PromptError(
            f"{cache.tokens + ids.size} tokens do not fit a cache of {cache.capacity}; "
            "make the cache larger or the prompt shorter"
        )
    return ids, positions


def checked_prompt(model: Model, ids: Ints, positions: Ints, chunk: int, rows: int) -> tuple[Ints, Ints]:
    """Ids and positions as int64 arrays, once they make sense together."""
    ids, positions = np.asarray(ids), np.asarray(positions)
    if chunk < 1 or rows < 1:
        raise ConfigError(f"chunk is {chunk} and rows is {rows}; both must be at least 1")
    if ids.ndim != 1 or ids.size == 0:
        raise PromptError(f"the prompt is empty or no list of token ids (shape {ids.shape})")
    if not (np.issubdtype(ids.dtype, np.integer) and np.issubdtype(positions.dtype, np.integer)):
        raise PromptError(f"token ids and positions must be integers, not {ids.dtype} and {positions.dtype}")
    if positions.shape != ids.shape:
        raise PromptError(f"{positions.size} positions for {ids.size} tokens; give one position a token")
    check_context(model, positions)
    model.check_ids(ids)
    return ids.astype(np.int64), positions.astype(np.int64)


def check_context(model: Model, positions: Ints) -> None:
    """PromptError for positions (n,) outside of what the model was made for."""
    first, last, context = int(positions.min()), int(positions.max()), model.config.context
    if first < 0 or last >= context:
        raise PromptError(
            f"position {last if first >= 0 else first} is outside the model's context of {context} tokens; "
            "shorten the prompt"
        )
