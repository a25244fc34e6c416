"""DFlash: a chain of guesses a pass, greedily or sampled from exactly the target's distribution.

Sampled guesses are accepted with probability ``min(1, p(x) / q(x))``, p being the target's and q the draft's
distribution; the first one refused is replaced by a draw from ``max(p - q, 0)``, normalised. What comes out is
distributed as if the target had been sampled token by token, whatever the draft.

References
----------
z-lab, "DFlash: Block Diffusion for Flash Speculative Decoding", 2026, https://arxiv.org/abs/2602.06036;
Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023 (the acceptance rule).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.config import check_fields
from sp.decode.base import DECODERS, Speculative, Tree
from sp.decode.ddtree import follow
from sp.errors import ConfigError
from sp.models.run.tree import MOST_NODES, TreePass
from sp.ops.array_module import on_host
from sp.ops.sampling.draw_tokens import draw_tokens, token_shares
from sp.ops.sampling.sample import argmax


@DECODERS.register("dflash")
@dataclass(frozen=True)
class DFlash(Speculative):
    """One guess for each place of the block, verified in one pass.

    Parameters
    ----------
    budget : int, optional
        Most guesses of a pass, 1 to 63; all of the block's if left out.
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
                f"decoder dflash: budget is {self.budget}; give 1 to {MOST_NODES - 1} guesses, or leave it out for "
                "the draft's whole block"
            )

    def nodes(self, block_size: int) -> int:
        """See `Speculative`."""
        return min(block_size, MOST_NODES, (self.budget or MOST_NODES) + 1)

    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """See `Speculative`."""
        return int(self._chosen(logits[None], rng)[0])

    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """See `Speculative`."""
        guesses = self._chosen(guessed[: self.nodes(len(guessed) + 1) - 1], rng)
        return Tree(np.concatenate([[token], guesses]), np.arange(len(guesses) + 1) - 1)

    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        """See `Speculative`."""
        if not self.temperature:
            return follow(tree, on_host(seen.choices))
        guesses = tree.tokens[1:]
        p, q = (token_shares(rows[: len(guesses)], self.temperature, guesses) for rows in (seen.logits, guessed))
        kept = stands(p, q, rng.random(len(guesses)))
        after = slice(kept, kept + 1)
        less = guessed[after] if kept < len(guesses) else None
        token = draw_tokens(seen.logits[after], self.temperature, rng.random(1), less)
        return np.arange(kept + 1), int(token[0])

    def _chosen(self, logits: Floats, rng: np.random.Generator) -> Ints:
        """A token for each row of logits (n, vocab), on the host."""
        if not len(logits):
            return np.empty(0, np.int64)
        if not self.temperature:
            return np.asarray(on_host(argmax(logits)), np.int64)
        return draw_tokens(logits, self.temperature, rng.random(len(logits)))


def stands(p: Doubles, q: Doubles, numbers: Doubles) -> int:
    """How many of some sampled guesses stand, up to the first that is refused.

    Parameters
    ----------
    p, q : float64 (n,)
        Probability of each guess by the target and by the draft.
    numbers : float64 (n,)
        Drawn from [0, 1).

    Examples
    --------
    >>> stands(np.array([0.5, 0.1]), np.array([0.4, 0.9]), np.array([0.99, 0.5]))
    1
    """
    refused = np.flatnonzero(numbers * q >= p)
    return int(refused[0]) if refused.size else len(p)
