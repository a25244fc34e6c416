"""Speculative decoders with a block draft: DFlash, a chain of guesses, and DDTree, a tree of them.

The draft guesses every depth without knowing the others, so the probability of a path is taken as the product of
its tokens'. The tree of a given size with the greatest expected number of accepted tokens then has the likeliest
paths, which a heap finds in order.

References
----------
DDTree, 2026, https://github.com/liranringel/ddtree (best-first trees from one block of a diffusion draft); Miao et al.,
"SpecInfer", 2024 (verification of token trees).

Sampled guesses are accepted with probability ``min(1, p(x) / q(x))``, p being the target's and q the draft's
distribution; the first one refused is replaced by a draw from ``max(p - q, 0)``, normalised. The result is
distributed as if the target had been sampled token by token, whatever the draft.

References
----------
z-lab, "DFlash: Block Diffusion for Flash Speculative Decoding", 2026, https://arxiv.org/abs/2602.06036;
Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023 (the acceptance rule).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.config import check_fields
from sp.decode.base import DECODERS
from sp.decode.speculate import Speculative, Tree
from sp.errors import ConfigError
from sp.models.run.tree import MOST_NODES, TreePass
from sp.ops.array_module import on_host
from sp.ops.sampling.sample import MOST_TOP, argmax, draw_tokens, token_shares, top_logprobs


@DECODERS.register("ddtree")
@dataclass(frozen=True)
class DDTree(Speculative):
    """Greedy decoding that verifies a tree of guesses in each pass.

    Parameters
    ----------
    budget : int
        Guesses in a tree, 1 to 63: with the known token they are the 64 nodes that a pass takes.
    top_k : int
        Candidates at each depth, 1 to 16.
    chain_seed : bool
        Put the likeliest token of every depth, one after the other, into the tree first. Depths are guessed
        independently, so the probabilities of long paths are underestimated without it.

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
        if self.top_k > MOST_TOP:
            raise ConfigError(f"decoder ddtree: top_k is {self.top_k}; a depth chooses among 1 to {MOST_TOP} guesses")
        if self.budget >= MOST_NODES:
            raise ConfigError(
                f"decoder ddtree: budget is {self.budget}, but a pass takes the known token and {MOST_NODES - 1} "
                f"guesses at most; give 1 to {MOST_NODES - 1}"
            )

    def nodes(self, block_size: int) -> int:
        """Return the most nodes of a tree; short blocks have fewer paths than the budget."""
        paths: int = sum(self.top_k**depth for depth in range(block_size))  # nodes of the complete tree
        return min(self.budget + 1, paths)

    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        return int(on_host(argmax(logits[None]))[0])

    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        ranked, scores = map(on_host, top_logprobs(guessed, min(self.top_k, guessed.shape[1])))
        return best_first(token, ranked, scores, self.budget, self.chain_seed)

    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        return follow(tree, on_host(seen.choices))


def best_first(token: int, ranked: Ints, scores: Floats, budget: int, chain_seed: bool) -> Tree:
    """Return the tree of the `budget` likeliest paths below `token`.

    `ranked` int (depths, top_k): candidates of each depth, the likeliest first; `scores` float32 (depths, top_k): their
    log probabilities.
    """
    depths, choices = ranked.shape
    tokens, parents = [token], [-1]
    words, gains = ranked.tolist(), scores.tolist()
    # Negated score, parent, rank, depth, log probability of the parent's path.
    waiting: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, depth: int, rank: int, above: float) -> None:
        """Add a candidate to the heap; the likeliest leaves it first, ties by parent and rank."""
        if depth < depths and rank < choices:
            heapq.heappush(waiting, (-(above + gains[depth][rank]), parent, rank, depth, above))

    def add(parent: int, depth: int, rank: int) -> int:
        tokens.append(words[depth][rank])
        parents.append(parent)
        return len(tokens) - 1

    parent, above = 0, 0.0
    if chain_seed:
        for depth in range(min(depths, budget)):
            offer(parent, depth, 1, above)  # the runner-up at this depth
            parent, above = add(parent, depth, 0), above + gains[depth][0]
    else:
        offer(0, 0, 0, 0.0)
    while waiting and len(tokens) <= budget:
        score, parent, rank, depth, above = heapq.heappop(waiting)
        node = add(parent, depth, rank)
        # A path's sibling and its likeliest child are the only new candidates: all others are less likely than these.
        offer(parent, depth, rank + 1, above)
        offer(node, depth + 1, 0, -score)
    return Tree(np.array(tokens), np.array(parents))


def follow(tree: Tree, choices: Ints) -> tuple[Ints, int]:
    """Return the path down the tree along the target's choices, and the target's token after the path.

    `choices` int64 (nodes,): the target's token after each node.
    """
    children = {
        (int(parent), int(token)): i for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    path = [0]
    # The target's choice is a node of the tree.
    while (child := children.get((path[-1], int(choices[path[-1]])))) is not None:
        path.append(child)
    return np.array(path), int(choices[path[-1]])


@DECODERS.register("dflash")
@dataclass(frozen=True)
class DFlash(Speculative):
    """One guess for each position of the block, verified in one pass.

    Parameters
    ----------
    budget : int, optional
        Most guesses of a pass, 1 to 63; all of the block's if omitted.
    temperature : float
        0 takes the likeliest token, as greedy decoding does; above, tokens are sampled from the target's softmax at
        this temperature.

    Examples
    --------
    >>> DFlash().propose(5, np.array([[0.0, 1.0], [3.0, 2.0]], np.float32), np.random.default_rng()).tokens.tolist()
    [5, 1, 0]
    """

    budget: int | None = None
    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "decoder dflash")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"decoder dflash: temperature is {self.temperature}; give 0 (greedy) or more")
        if self.budget is not None and not 1 <= self.budget < MOST_NODES:
            raise ConfigError(
                f"decoder dflash: budget is {self.budget}; give 1 to {MOST_NODES - 1} guesses, or omit it for "
                "the draft's whole block"
            )

    def nodes(self, block_size: int) -> int:
        return min(block_size, MOST_NODES, (self.budget or MOST_NODES) + 1)

    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        return int(self._choose(logits[None], rng)[0])

    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        guesses = self._choose(guessed[: self.nodes(len(guessed) + 1) - 1], rng)
        return Tree(np.concatenate([[token], guesses]), np.arange(len(guesses) + 1) - 1)

    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        if not self.temperature:
            return follow(tree, on_host(seen.choices))
        guesses = tree.tokens[1:]
        p, q = (token_shares(rows[: len(guesses)], self.temperature, guesses) for rows in (seen.logits, guessed))
        accepted = count_accepted(p, q, rng.random(len(guesses)))
        row = slice(accepted, accepted + 1)
        # After a refusal the draw is from max(p - q, 0); after the last guess there is no q, and it is from p.
        subtracted = guessed[row] if accepted < len(guesses) else None
        token = draw_tokens(seen.logits[row], self.temperature, rng.random(1), subtracted)
        return np.arange(accepted + 1), int(token[0])

    def _choose(self, logits: Floats, rng: np.random.Generator) -> Ints:
        """Choose a token for each row of logits (n, vocab); the result is on the host."""
        if not len(logits):
            return np.empty(0, np.int64)
        if not self.temperature:
            return np.asarray(on_host(argmax(logits)), np.int64)
        return draw_tokens(logits, self.temperature, rng.random(len(logits)))


def count_accepted(p: Doubles, q: Doubles, numbers: Doubles) -> int:
    """Count the sampled guesses that are accepted, up to the first refusal.

    `p`, `q` float64 (n,): probability of each guess by the target and by the draft; `numbers` float64 (n,): drawn
    uniformly from [0, 1).
    """
    # Accepted with probability min(1, p / q): written without a division, as q may be 0.
    refused = np.flatnonzero(numbers * q >= p)
    return int(refused[0]) if refused.size else len(p)
