"""prefill and decode_step: all layers for the tokens at hand, chunk by chunk.

This module also defines how recurrent layers treat gaps, tokens of a prompt that were left out. Attention sees a gap
through the positions of its keys. A recurrent layer sees only the order of its tokens, so it treats the tokens on both
sides of a gap as neighbours. Published systems do that; the other two ways exist to measure its effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, PromptError
from sp.models.cache.cache import Cache
from sp.models.layer.delta import GatedDelta
from sp.models.network.model import Model
from sp.models.run.graph import PrefillGraphs
from sp.models.run.hooks import NO_HOOKS, Hooks, ProgressReporter, run_layers
from sp.ops.array_module import array_module
from sp.quant import Math

Gaps = Literal["compact", "reset", "decay"]
"""Treatment of a gap by recurrent layers: join its two sides, reset the state, or decay it as the omitted tokens would
have."""


def gap_lengths(positions: Ints) -> dict[int, int]:
    """Return the number of tokens left out before a token, by its index, where there are any."""
    steps = np.diff(positions) - 1
    return {int(index) + 1: int(steps[index]) for index in np.flatnonzero(steps > 0)}


def cross_gap(model: Model, cache: Cache, tokens: int, gaps: Gaps) -> None:
    """Prepare the recurrent states of a cache for the first token after a gap of so many tokens. The inputs of the
    convolution are reset in any case. With `decay` the state of head h is multiplied by ``exp(tokens a[h]
    softplus(dt_bias[h]))``: the decay by tokens with ``alpha = 0``."""
    for layer in model.config.delta_layers:
        mixer, state = model.weights.blocks[layer].mixer, cache.state(layer)
        assert isinstance(mixer, GatedDelta), f"layer {layer} has no recurrent state"
        state.conv.fill(0)
        if gaps == "reset":
            state.recurrent.fill(0)
        else:
            xp = array_module(mixer.params.a)
            rate = mixer.params.a * xp.logaddexp(mixer.params.dt_bias, np.float32(0))
            state.recurrent *= xp.exp(np.float32(tokens) * rate)[:, None, None]


CHUNK = {"cpu": 1024, "cuda": 8192}
"""Tokens that pass a layer together: on the CPU what fits its caches, on the device what fills it."""


def chunk_tokens(device: str, precision: Math) -> int:
    """Return `CHUNK`, doubled on the device if weights are quantised for every chunk.

    >>> chunk_tokens("cuda", Math.BF16), chunk_tokens("cuda", Math.INT8), chunk_tokens("cpu", Math.INT8)
    (8192, 16384, 1024)
    """
    return CHUNK[device] * (2 if device == "cuda" and precision is not Math.BF16 else 1)


def prefill(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    chunk: int | None = None,
    rows: int = 1,
    gaps: Gaps = "compact",
    hooks: Hooks = NO_HOOKS,
    graphs: PrefillGraphs | None = None,
) -> Floats:
    """Read a prompt chunk by chunk, each through all layers, and predict the token after it.

    The last layer computes keys, values and states for every token, but its output only for the last `rows`.

    Parameters
    ----------
    ids, positions : int64 (n,)
        Tokens and their RoPE positions. Positions may have gaps: each token sees those before it in the array.
    cache : Cache
        May hold earlier tokens of the same sequence.
    chunk : int, optional
        Tokens that pass a layer together. The result does not depend on it, beyond rounding.
    rows : int
        Number of last tokens that pass the whole last layer; a hook sees so many queries there.
    gaps : {"compact", "reset", "decay"}
        Treatment of gaps by recurrent layers, see `Gaps`; attention is not affected. With ``reset`` and ``decay`` every
        run between gaps passes the layers by itself.
    hooks : Hooks
        Called once per chunk and layer; progress counts tokens.
    graphs : PrefillGraphs, optional
        Graphs of the same model and cache, used for the runs that they support. Ignored if `hooks` observe layers,
        which needs single launches.

    Returns
    -------
    float32 (vocab,)
        Logits of the last token, where the model is. Work on the device may still be under way.

    Raises
    ------
    PromptError
        For an empty prompt, ids outside the vocabulary, positions that do not match or exceed the context, a full or
        released cache.
    """
    model.check_loaded()
    graphs = graphs if hooks.on_attention is None and hooks.after_layer is None else None
    if chunk is None:
        chunk = chunk_tokens(model.device, model.arithmetic.precision)
        chunk = chunk if graphs is None else graphs.chunk(chunk)
    # Windowed layers of a ring cache take no more in one append.
    chunk = min(chunk, cache.most_at_once)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows, cache)
    gap_before = {} if gaps == "compact" else gap_lengths(positions)
    pace, x = ProgressReporter(model, hooks.progress), np.empty((0, model.config.hidden), np.float32)
    for part, needed in slices(len(ids), chunk, rows, gap_before):
        # Slices never cross a gap, so the state is changed between two slices.
        if part.start in gap_before:
            cross_gap(model, cache, gap_before[part.start], gaps)
        with model.on_shared_cpu() if part.stop - part.start > 1 else nullcontext():
            last_input = None if graphs is None else graphs.begin(ids[part], positions[part])
            if last_input is None:
                x = model.embed(ids[part])
                x = run_layers(model, x, model.place(positions[part]), cache, rows=needed, hooks=hooks)
            else:
                last_layer = model.config.layers - 1
                x = run_layers(model, last_input.x, last_input.positions, cache, first=last_layer, rows=needed)
        pace.done(part.stop - part.start)
    pace.done(0, ahead=0)
    if cache.recent:
        cache.end_run()
    logits: Floats = model.head(x[-1:])[0]
    return logits


def decode_step(model: Model, token: int, position: int, cache: Cache, *, hooks: Hooks = NO_HOOKS) -> Floats:
    """Read one more token and predict the next: logits (vocab,). Errors are those of `prefill`."""
    return prefill(model, np.array([token]), np.array([position]), cache, hooks=hooks)


def slices(n: int, chunk: int, rows: int, cuts: Iterable[int] = ()) -> list[tuple[slice, int]]:
    """Split n tokens into slices of at most `chunk` tokens, none across a cut, each with its number of tokens among the
    last `rows`."""
    starts = sorted({*range(0, n, chunk), *cuts})
    parts = [slice(start, stop) for start, stop in pairwise([*starts, n])]
    return [(s, min(max(s.stop - (n - rows), 0), s.stop - s.start)) for s in parts]


def checked_prompt(
    model: Model, ids: Ints, positions: Ints, chunk: int, rows: int, cache: Cache | None = None
) -> tuple[Ints, Ints]:
    """Return ids and positions as int64 arrays, after checking that they fit together, the model and the cache."""
    ids, positions = np.asarray(ids), np.asarray(positions)
    if chunk < 1 or rows < 1:
        raise ConfigError(f"chunk is {chunk} and rows is {rows}; both must be at least 1")
    if ids.ndim != 1 or ids.size == 0:
        raise PromptError(f"the prompt is empty or not a list of token ids (shape {ids.shape})")
    if not (np.issubdtype(ids.dtype, np.integer) and np.issubdtype(positions.dtype, np.integer)):
        raise PromptError(f"token ids and positions must be integers, not {ids.dtype} and {positions.dtype}")
    if positions.shape != ids.shape:
        raise PromptError(f"{positions.size} positions for {ids.size} tokens; pass one position per token")
    check_context(model, positions)
    # An id outside would read beyond the embedding on the device.
    outside = ids[(ids < 0) | (ids >= model.config.vocab)]
    if outside.size:
        raise PromptError(
            f"token id {outside[0]} is outside the vocabulary of {model.config.vocab}; use the model's own tokenizer"
        )
    if cache is not None and cache.tokens + ids.size > cache.capacity:
        raise PromptError(
            f"{cache.tokens + ids.size} tokens do not fit a cache of {cache.capacity}; "
            "make the cache larger or the prompt shorter"
        )
    return ids.astype(np.int64), positions.astype(np.int64)


def check_context(model: Model, positions: Ints) -> None:
    """Raise PromptError for positions (n,) outside the model's context."""
    first, last, context = int(positions.min()), int(positions.max()), model.config.context
    if first < 0 or last >= context:
        raise PromptError(
            f"position {last if first >= 0 else first} is outside the model's context of {context} tokens; "
            "shorten the prompt"
        )
