"""speculate: draft, verify in one pass of the target, keep what stands; again until the answer is long enough."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from sp.arrays import Floats
from sp.decode.base import Speculative
from sp.decode.cycle import Cycle, Guesser
from sp.decode.graph_cycle import new_cycle
from sp.models import Cache, Model


def speculate(
    model: Model,
    guesser: Guesser,
    decoder: Speculative,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    limit: int,
    seed: int = 0,
    on_pass: Callable[[int], None] | None = None,
    cycle: Cycle | None = None,
) -> Generator[int]:
    """Tokens of the answer one by one, up to `limit`: those of `sp.decode.greedy.generate`, in fewer passes.

    A pass reads many tokens together, whose sums are rounded in another order than one by one; the answers can part
    where the two likeliest tokens are that close.

    `guesser`: remembers all that `cache` holds; `decoder`: what is guessed, and what of it stands; `logits` float32
    (vocab,): of the last token read; `cache`: with room for ``limit - 1 + decoder.nodes(guesser.block_size)`` more
    tokens. Whoever stops early finds it further on; `seed`: of the random numbers where tokens are sampled; `on_pass`:
    called with the tokens each pass of the target gave; `cycle`: of the same model, guesser and cache, and of as many
    nodes, that goes on living; by default one is made.
    """
    rng = np.random.default_rng(seed)
    token, left = decoder.first(logits, rng), limit - 1
    yield token
    if not left:
        return
    mine = cycle or new_cycle(model, guesser, cache, decoder.nodes(guesser.block_size))
    try:
        while left:
            known, token = _round(mine, decoder, token, position, left, rng)
            left, position = left - len(known), position + len(known)
            if on_pass is not None:
                on_pass(len(known))
            yield from known[1:]
            yield token
    finally:
        mine.rest() if cycle else mine.end()


def _round(
    cycle: Cycle, decoder: Speculative, token: int, position: int, left: int, rng: np.random.Generator
) -> tuple[list[int], int]:
    """Tokens that stand, `token` itself the first of them, and the one after; `left` are wanted in all."""
    with cycle.working():
        depth = min(cycle.block_size - 1, left - 1)  # the target itself gives one token a pass
        guessed = cycle.guess(token, position, depth) if depth else np.empty((0, 1), np.float32)
        tree = decoder.propose(token, guessed, rng)
        path, after = decoder.accept(tree, guessed, cycle.read(tree, position), rng)
        cycle.keep(path)
        if left > len(path):
            cycle.remember(path, position + tree.depths[path])
    return tree.tokens[path].tolist(), after
