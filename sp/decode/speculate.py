"""speculate: draft, verify in one pass of the target, keep what stands; again until the answer is long enough."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.decode.base import Speculative
from sp.models import Cache, Model
from sp.models.tree import keep_path, read_tree


class Guesser(Protocol):
    """A draft at work on one sequence, for example a `DraftSession`."""

    block_size: int
    layers: tuple[int, ...]

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in the outputs of `layers` for tokens the target has read."""
        ...

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Logits (depth, vocab) of the tokens after `token`."""
        ...


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
) -> Generator[int]:
    """Tokens of the answer one by one, up to `limit`: those of `sp.decode.greedy.generate`, in fewer passes.

    A pass reads many tokens together, whose sums are rounded in another order than one by one; the answers can part
    where the two likeliest tokens are that close.

    Parameters
    ----------
    model : Model
        On the CPU.
    guesser : Guesser
        Remembers all that `cache` holds.
    decoder : Speculative
        What is guessed, and what of it stands.
    logits : float32 (vocab,)
        Of the last token read.
    position : int
        Of the first token generated.
    cache : Cache
        With room for ``limit - 1 + decoder.room`` more tokens. Whoever stops early finds it further on.
    limit : int
    seed : int
        Of the random numbers where tokens are sampled.
    on_pass : callable, optional
        Called with the tokens each pass of the target gave.
    """
    rng = np.random.default_rng(seed)
    token, left = decoder.first(logits, rng), limit - 1
    yield token
    while left:
        depth = min(guesser.block_size - 1, left - 1)  # the target itself gives one token a pass
        guessed = guesser.guess(token, position, depth) if depth else np.empty((0, len(logits)), np.float32)
        tree = decoder.propose(token, guessed, rng)
        positions = position + tree.depths
        seen = read_tree(model, tree.tokens, tree.parents, positions, cache, guesser.layers)
        path, token = decoder.accept(tree, guessed, seen.logits, rng)
        keep_path(model, cache, seen, path)
        left, position = left - len(path), position + len(path)
        if on_pass is not None:
            on_pass(len(path))
        yield from tree.tokens[path[1:]].tolist()
        yield token
        if left:
            guesser.remember(seen.features[path], positions[path])
