"""Decoders by name: how an answer is decoded once the prompt has been read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import Registry
from sp.decode.choose import Chooser
from sp.models.run.tree import TreePass


class Decoder:
    """A way to decode; those that guess ahead are `Speculative`.

    Attributes
    ----------
    watched : bool
        Whether somebody is told of its tokens or says which may come, so that no more than one may choose them.
    """

    watched = False

    def chooser(self, seed: int, **watched: Any) -> Chooser | None:
        """What chooses the tokens of one answer, where no draft guesses ahead; None for the likeliest of all.

        Parameters
        ----------
        seed : int
            Of the run.
        watched
            What else a `Chooser` takes: a constraint, or who is told of the tokens. A draft then guesses nothing.
        """
        return Chooser(None, seed, **watched) if watched else None


DECODERS: Registry[Decoder] = Registry("decoder")


@DECODERS.register("greedy")
@dataclass(frozen=True)
class Greedy(Decoder):
    """The likeliest token, one pass of the target each; see `sp.decode.greedy`."""


@dataclass(frozen=True)
class Tree:
    """Tokens that may come next, read by the target in one pass.

    Attributes
    ----------
    tokens : int64 (nodes,)
        The first is known already, the others are guesses.
    parents : int64 (nodes,)
        Index of the token before each; less than its own, -1 for the first.

    Examples
    --------
    >>> Tree(np.array([7, 8, 9, 5]), np.array([-1, 0, 0, 2])).depths.tolist()
    [0, 1, 1, 2]
    """

    tokens: Ints
    parents: Ints

    @cached_property
    def depths(self) -> Ints:
        """Tokens of the tree before each one on its path."""
        depths = np.zeros(len(self.parents), np.int64)
        for node, parent in enumerate(self.parents[1:], 1):
            depths[node] = depths[parent] + 1
        return depths


class Speculative(Decoder, ABC):
    """Guesses of a draft, verified by the target many at a time.

    Logits lie where the models run; what decides about tokens comes to the host.
    """

    @abstractmethod
    def nodes(self, block_size: int) -> int:
        """Most nodes of a tree, where the draft's blocks have `block_size` tokens; `MOST_NODES` at most."""

    @abstractmethod
    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """The token after the prompt, from its logits (vocab,)."""

    @abstractmethod
    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """A tree whose first token is `token`, from the draft's logits (depth, vocab) of those after it."""

    @abstractmethod
    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        """What the target makes of the tree.

        Parameters
        ----------
        tree : Tree
            As proposed from `guessed`.
        seen : TreePass
            Of the nodes of the tree, and perhaps of others behind them.

        Returns
        -------
        path : int64 (kept,)
            Nodes that are part of the answer, from the first on.
        token : int
            The one after them.
        """
