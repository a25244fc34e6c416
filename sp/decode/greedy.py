"""Greedy decoding: the likeliest token, one at a time."""

from __future__ import annotations

from collections.abc import Callable

from sp.arrays import Floats
from sp.models import Cache, Model, decode_step


def greedy(
    model: Model,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    eos_ids: frozenset[int],
    max_new_tokens: int,
    on_token: Callable[[int], None] | None = None,
) -> list[int]:
    """Tokens generated from the logits of the last prompt token.

    Parameters
    ----------
    logits : array (vocab,)
        Logits after the prefill; their argmax is the first token.
    position : int
        Position of the first generated token: the length of the *original* prompt when kept tokens stand at
        their original positions.
    eos_ids : frozenset of int
        Tokens that end the answer; they are not returned.
    max_new_tokens : int
        At most so many tokens.
    on_token : callable, optional
        Called with each token as soon as it is known.

    Returns
    -------
    list of int
    """
    tokens: list[int] = []
    while len(tokens) < max_new_tokens:
        token = int(logits.argmax())
        if token in eos_ids:
            break
        tokens.append(token)
        if on_token is not None:
            on_token(token)
        if len(tokens) < max_new_tokens:
            logits = decode_step(model, token, position + len(tokens) - 1, cache)
    return tokens
