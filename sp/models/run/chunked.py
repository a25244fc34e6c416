"""prefill and decode_step: all layers for the tokens at hand, chunk by chunk.

What recurrent layers do where a prompt has gaps, tokens that were left out, is chosen here: attention sees a gap
through the positions of its keys; a recurrent layer sees only the order of its tokens, so it takes those on both sides
of a gap for neighbours. That is what published systems do; there are two other ways, to measure what it matters.
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
from sp.models.run.hooks import NO_HOOKS, Hooks, Pace, through
from sp.ops.array_module import array_module
from sp.quant import Math

Gaps = Literal["compact", "reset", "decay"]
"""Neighbours; forget everything at a gap; or forget what the tokens left out would have made it forget."""


def gap_lengths(positions: Ints) -> dict[int, int]:
    """Tokens left out before a token, by its index, where there are any."""
    steps = np.diff(positions) - 1
    return {int(at) + 1: int(steps[at]) for at in np.flatnonzero(steps > 0)}


def cross_gap(model: Model, cache: Cache, tokens: int, gaps: Gaps) -> None:
    """Change the recurrent states of a cache as they are to meet the first token behind a gap of so many tokens. The
    inputs of the convolution are forgotten in any case. With `decay` the state of head h is multiplied by ``exp(tokens
    a[h] softplus(dt_bias[h]))``: what tokens with ``alpha = 0`` would leave of it."""
    for layer in model.config.delta_layers:
        mixer, state = model.trunk.blocks[layer].mixer, cache.state(layer)
        assert isinstance(mixer, GatedDelta), f"layer {layer} has no recurrent state"
        state.conv.fill(0)
        if gaps == "reset":
            state.recurrent.fill(0)
        else:
            xp = array_module(mixer.params.a)
            rate = mixer.params.a * xp.logaddexp(mixer.params.dt_bias, np.float32(0))
            state.recurrent *= xp.exp(np.float32(tokens) * rate)[:, None, None]


CHUNK = {"cpu": 1024, "cuda": 8192}
"""Tokens that go through a layer together: on the CPU what its caches like, on the device what fills it."""


def chunk_tokens(device: str, precision: Math) -> int:
    """`CHUNK`, twice that on the device where weights are rounded for every chunk.

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
        Tokens and where RoPE puts them. Positions may have gaps: each token sees those before it in the array.
    cache : Cache
        May hold earlier tokens of the same sequence.
    chunk : int, optional
        Tokens that go through a layer together; a good number by default. The result does not depend on it, beyond
        rounding.
    rows : int
        How many of the last tokens pass the whole last layer; a hook sees queries of so many there.
    gaps : {"compact", "reset", "decay"}
        What recurrent layers do where positions have gaps, see `Gaps`; attention has no part in it. In all but the
        first way every run between gaps goes through the layers alone.
    hooks : Hooks
        Called once a chunk and layer; progress counts tokens.
    graphs : PrefillGraphs, optional
        Of the same model and cache: takes the runs that it can as CUDA graphs. Not with hooks of layers, which look on
        launch by launch.

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
    graphs = graphs if hooks.on_attention is None and hooks.after_layer is None else None
    if chunk is None:
        chunk = chunk_tokens(model.device, model.arithmetic.precision)
        chunk = chunk if graphs is None else graphs.chunk(chunk)
    chunk = min(chunk, cache.most_at_once)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows, cache)
    crossed = {} if gaps == "compact" else gap_lengths(positions)
    pace, x = Pace(model, hooks.progress), np.empty((0, model.config.hidden), np.float32)
    for part, wanted in slices(len(ids), chunk, rows, crossed):
        if part.start in crossed:
            cross_gap(model, cache, crossed[part.start], gaps)
        with model.queueing() if part.stop - part.start > 1 else nullcontext():
            begun = None if graphs is None else graphs.begin(ids[part], positions[part])
            if begun is None:
                places = model.place(positions[part])
                x = through(model, model.embed(ids[part]), places, cache, rows=wanted, hooks=hooks)
            else:
                x = through(model, begun.x, begun.positions, cache, first=model.config.layers - 1, rows=wanted)
        pace.done(part.stop - part.start)
    pace.done(0, ahead=0)
    logits: Floats = model.head(x[-1:])[0]
    return logits


def decode_step(model: Model, token: int, position: int, cache: Cache, *, hooks: Hooks = NO_HOOKS) -> Floats:
    """Read one more token and predict the next: logits (vocab,). Errors are those of `prefill`."""
    return prefill(model, np.array([token]), np.array([position]), cache, hooks=hooks)


def slices(n: int, chunk: int, rows: int, cuts: Iterable[int] = ()) -> list[tuple[slice, int]]:
    """Slices of at most `chunk` tokens, none across a cut, each with how many of its are among the last `rows`."""
    starts = sorted({*range(0, n, chunk), *cuts})
    parts = [slice(start, stop) for start, stop in pairwise([*starts, n])]
    return [(s, min(max(s.stop - (n - rows), 0), s.stop - s.start)) for s in parts]


def checked_prompt(
    model: Model, ids: Ints, positions: Ints, chunk: int, rows: int, cache: Cache | None = None
) -> tuple[Ints, Ints]:
    """Ids and positions as int64 arrays, once they make sense together and have room in the cache."""
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
    outside = ids[(ids < 0) | (ids >= model.config.vocab)]
    if outside.size:
        raise PromptError(
            f"token id {outside[0]} is outside the vocabulary of {model.config.vocab}; was another tokenizer used?"
        )
    if cache is not None and cache.tokens + ids.size > cache.capacity:
        raise PromptError(
            f"{cache.tokens + ids.size} tokens do not fit a cache of {cache.capacity}; "
            "make the cache larger or the prompt shorter"
        )
    return ids.astype(np.int64), positions.astype(np.int64)


def check_context(model: Model, positions: Ints) -> None:
    """PromptError for positions (n,) outside of what the model was made for."""
    first, last, context = int(positions.min()), int(positions.max()), model.config.context
    if first < 0 or last >= context:
        raise PromptError(
            f"position {last if first >= 0 else first} is outside the model's context of {context} tokens; "
            "shorten the prompt"
        )
