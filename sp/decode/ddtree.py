"""DDTree: a block draft's best guesses as a tree, all of it verified in one pass of the target.

The draft guesses every depth without knowing the others, so the probability of a path is taken as the product of
its tokens'. The tree of a given size with the greatest expected number of accepted tokens then has the likeliest
paths, which a heap finds in order.

References
----------
DDTree, 2026, https://github.com/liranringel/ddtree (best-first trees from one block of a diffusion draft); Miao et al.,
"SpecInfer", 2024 (verification of token trees).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import check_fields
from sp.decode.base import DECODERS, Speculative, Tree
from sp.errors import ConfigError
from sp.models.run.tree import MOST_NODES, TreePass
from sp.ops.array_module import on_host
from sp.ops.sampling.sample import argmax
from sp.ops.sampling.top_logprobs import MOST, top_logprobs


@DECODERS.register("ddtree")
@dataclass(frozen=True)
class DDTree(Speculative):
    """Greedy decoding that verifies a tree of guesses a pass.

    Parameters
    ----------
    budget : int
        Guesses in a tree, 1 to 63: with the known token they are the 64 nodes that a pass takes.
    top_k : int
        Guesses that each depth chooses among, 1 to 16.
    chain_seed : bool
        Whether the likeliest token of every depth, one after the other, is in the tree before all else. Depths are
        guessed apart, so the probabilities of long paths are too low without it.

    Examples
    --------
    >>> guessed = np.log(np.array([[0.6, 0.4], [0.9, 0.1]], np.float32))
    >>> tree = DDTree(budget=3).propose(5, guessed, np.random.default_rng())
    >>> tree.tokens.tolist(), tree.parents.tolist()
    ([5, 0, 0, 1], [-1, 0, 1, 0])
    """

    budget: int = 22
    top_k: int = 8
    chain_seed: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "decoder ddtree")
        if self.budget < 1 or self.top_k < 1:
            raise ConfigError(
                f"decoder ddtree: budget is {self.budget} and top_k {self.top_k}; both must be at least 1"
            )
        if self.top_k > MOST:
            raise ConfigError(f"decoder ddtree: top_k is {self.top_k}; a depth chooses among 1 to {MOST} guesses")
        if self.budget >= MOST_NODES:
            raise ConfigError(
                f"decoder ddtree: budget is {self.budget}, but a pass takes the known token and {MOST_NODES - 1} "
                f"guesses at most; give 1 to {MOST_NODES - 1}"
            )

    def nodes(self, block_size: int) -> int:
        """See `Speculative`; short blocks have too few paths for the budget."""
        paths: int = sum(self.top_k**depth for depth in range(block_size))
        return min(self.budget + 1, paths)

    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """See `Speculative`."""
        return int(on_host(argmax(logits[None]))[0])

    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """See `Speculative`."""
        ranked, scores = map(on_host, top_logprobs(guessed, min(self.top_k, guessed.shape[1])))
        return best_first(token, ranked, scores, self.budget, self.chain_seed)

    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        """See `Speculative`."""
        return follow(tree, on_host(seen.choices))


def best_first(token: int, ranked: Ints, scores: Floats, budget: int, chain_seed: bool) -> Tree:
    """The `budget` likeliest paths below `token`.

    Parameters
    ----------
    ranked : int (depths, top_k)
        Guesses of each depth, the likeliest first.
    scores : float32 (depths, top_k)
        Their log probabilities.
    """
    depths, choices = ranked.shape
    tokens, parents = [token], [-1]
    words, gains = ranked.tolist(), scores.tolist()
    waiting: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, depth: int, rank: int, above: float) -> None:
        """A guess that may come in; the likeliest goes first, ties by the order of the offers' parents and ranks."""
        if depth < depths and rank < choices:
            heapq.heappush(waiting, (-(above + gains[depth][rank]), parent, rank, depth, above))

    def add(parent: int, depth: int, rank: int) -> int:
        tokens.append(words[depth][rank])
        parents.append(parent)
        return len(tokens) - 1

    parent, above = 0, 0.0
    if chain_seed:
        for depth in range(min(depths, budget)):
            offer(parent, depth, 1, above)
            parent, above = add(parent, depth, 0), above + gains[depth][0]
    else:
        offer(0, 0, 0, 0.0)
    while waiting and len(tokens) <= budget:
        score, parent, rank, depth, above = heapq.heappop(waiting)
        node = add(parent, depth, rank)
        offer(parent, depth, rank + 1, above)
        offer(node, depth + 1, 0, -score)
    return Tree(np.array(tokens), np.array(parents))


def follow(tree: Tree, choices: Ints) -> tuple[Ints, int]:
    """Down the tree for as long as it holds what the target would say.

    Parameters
    ----------
    choices : int64 (nodes,)
        The target's token after each node.

    Returns
    -------
    path : int64 (kept,)
    token : int
        The target's choice after the path.

    Examples
    --------
    >>> follow(Tree(np.array([7, 8, 9, 5]), np.array([-1, 0, 0, 2])), np.array([9, 0, 5, 6]))
    (array([0, 2, 3]), 6)
    """
    children = {
        (int(parent), int(token)): i for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    path = [0]
    while (child := children.get((path[-1], int(choices[path[-1]])))) is not None:
        path.append(child)
    return np.array(path), int(choices[path[-1]])
