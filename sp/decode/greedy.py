"""Decoding one token at a time: the likeliest, or what a chooser takes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from sp.arrays import Floats
from sp.decode.choose import Chooser
from sp.kernels import is_device
from sp.models import Cache, Model, decode_step
from sp.ops.sampling.sample import argmax

if TYPE_CHECKING:
    from sp.decode.graph import GraphDecoder


def greedy(
    model: Model,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    eos_ids: frozenset[int],
    max_new_tokens: int,
    on_token: Callable[[int], bool | None] | None = None,
) -> list[int]:
    """Tokens generated from the logits of the last prompt token.

    On the device every step but the first is the replay of a CUDA graph, see `GraphDecoder`.

    `logits` array (vocab,): logits after the prefill; their argmax is the first token; `position`: position of the
    first generated token: the length of the *original* prompt when kept tokens stand at their original positions;
    `eos_ids`: tokens that end the answer; they are not returned; `on_token`: called with each token as soon as it is
    known; if it returns True, that token is the last.
    """
    return gather(generate(model, logits, position, cache, limit=max_new_tokens), eos_ids, on_token)


def gather(
    stream: Generator[int], eos_ids: frozenset[int], on_token: Callable[[int], bool | None] | None = None
) -> list[int]:
    """Tokens of a stream up to an end token, which is left out; closes the stream. `on_token` as for `greedy`."""
    tokens: list[int] = []
    with closing(stream):
        for token in stream:
            if token in eos_ids:
                break
            tokens.append(token)
            if on_token is not None and on_token(token):
                break
    return tokens


def generate(
    model: Model,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    limit: int,
    decoder: GraphDecoder | None = None,
    chooser: Chooser | None = None,
) -> Generator[int]:
    """Tokens one by one, up to `limit`, the likeliest or those of a `chooser`; other parameters as those of `greedy`.

    On the device `decoder` is one of the same model and cache that goes on living; by default it is made for this.
    """
    if is_device(logits) and model.captures:
        from sp.decode.graph import GraphDecoder

        mine = decoder or GraphDecoder(model, cache, limit)
        try:
            yield from mine.tokens(logits, position, limit, chooser)
        finally:
            if decoder is None:
                mine.end()
        return
    for number in range(limit):
        row = logits.reshape(1, -1)
        token = int((argmax(row) if chooser is None else chooser.choose(row))[0])
        yield token
        if number + 1 < limit:
            logits = decode_step(model, token, position + number, cache)
