"""Cycle: guess, read the guesses in one pass of the target, keep what stands; launch by launch or in CUDA graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sp.arrays import Floats, Ints
from sp.decode.base import Tree
from sp.models import Cache, Model
from sp.models.run.tree import TreePass, TreeReader


class Guesser(Protocol):
    """A draft at work on one sequence, for example a `DraftSession`."""

    block_size: int
    layers: tuple[int, ...]

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in the outputs of `layers` for tokens the target has read."""
        ...

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Logits (depth, vocab) of the tokens after `token`, where the target is; they stay until the next guess."""
        ...

    def end(self) -> None:
        """Let go of what only goes on guessing needs."""
        ...


class Cycle:
    """A target and a guesser at work on one sequence, each call launched as it comes.

    Parameters
    ----------
    guesser : Guesser
        Remembers all that `cache` holds.
    nodes : int
        Of the largest tree.
    """

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        self._guesser, self.block_size = guesser, guesser.block_size
        self._reader = TreeReader(model, cache, guesser.layers, nodes)

    @property
    def refused(self) -> str | None:
        """Why a pass is launched kernel by kernel that would be a CUDA graph; None where nothing is in the way."""
        return None

    def working(self) -> AbstractContextManager[None]:
        """Around all other calls and what is made of their results."""
        return nullcontext()

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """See `Guesser`."""
        return self._guesser.guess(token, position, depth)

    def read(self, tree: Tree, position: int) -> TreePass:
        """Read a tree whose first token stands at `position`. The result may come with more nodes behind its own."""
        return self._reader.read_tree(tree.tokens, tree.parents, position + tree.depths)

    def keep(self, path: Ints) -> None:
        """Keep a path of the tree just read."""
        self._reader.commit_path(path)

    def remember(self, path: Ints, positions: Ints) -> None:
        """Have the guesser take in the path just kept, whose nodes stand at `positions`."""
        self._guesser.remember(self._reader.features[path], positions)

    def rest(self) -> None:
        """Wait for all work."""

    def end(self) -> None:
        """Wait for all work and let go of its memory."""
        self._guesser.end()
