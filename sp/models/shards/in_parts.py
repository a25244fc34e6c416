"""in_parts: tokens through layers in two parts, so that cards add up the one while they compute the other.

A half of a layer ends in a sum over all cards, which waits for it and for which the next half waits. Of two parts of
the tokens one is always free to go on:

    computed     first: mixer | second: mixer | first: feed-forward | second: feed-forward | first: the next mixer
    added up                  | first         | second              | first                | second
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from sp.arrays import Floats, Ints
from sp.kernels.device import leaving_free
from sp.models.cache.cache import Cache
from sp.models.cache.delta_state import padded
from sp.models.shards.shard_block import ShardBlock

PART = 1024
"""Fewest tokens of a part; products of fewer are made in another way, and sums of them take no time to speak of."""
ROUND = 128
"""Parts begin at multiples of it, where pages and blocks of queries do."""


def middle(tokens: int) -> int:
    """Where the second of two parts begins; 0 where the tokens are too few for two.

    >>> middle(6656), middle(2047), middle(2048)
    (3328, 0, 1024)
    """
    return -(-tokens // (2 * ROUND)) * ROUND if tokens >= 2 * PART else 0


def in_parts(
    blocks: Sequence[ShardBlock], x: Floats, positions: Ints, cache: Cache, rest: Ints, left_free: int
) -> Floats:
    """The stream through all of some blocks, in place, in the thread of a card.

    Parameters
    ----------
    blocks : sequence of ShardBlock
        The first ones of a model, by layer.
    x : float32 (n, hidden)
        On the device; n at least two parts.
    positions : int64 (n,)
        On the device.
    cache : Cache
        Counts every layer for itself, those on the device as well.
    rest : int32 (1,)
        On the device: tokens of the second part that count; what is behind them is padding.
    left_free : int
        Multiprocessors for what adds up.

    Returns
    -------
    float32 (n, hidden)
        x itself.
    """
    cut = middle(len(x))
    assert cut, f"{len(x)} tokens in parts of {PART}"
    first, second = slice(0, cut), slice(cut, len(x))
    passes = [
        _pass(blocks, x[first], positions[first], cache),
        _pass(blocks, x[second], positions[second], cache, rest),
    ]
    with leaving_free(left_free):
        while passes:
            passes = [one for one in passes if next(one, False) is None]
    return x


def _pass(
    blocks: Sequence[ShardBlock], x: Floats, positions: Ints, cache: Cache, real: Ints | None = None
) -> Iterator[None]:
    """One part's way; it stops whenever a sum has begun."""
    for layer, block in enumerate(blocks):
        states = [cache.state(layer)] if layer in cache.config.delta_layers else []
        with nullcontext() if real is None else padded(states, real):
            joined = block.begin_mixing(x, positions, cache)
        yield
        joined()
        joined = block.begin_feeding(x)
        yield
        joined()
