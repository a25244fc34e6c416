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
from sp.decode.ddtree import follow, log_softmax
from sp.errors import ConfigError


@DECODERS.register("dflash")
@dataclass(frozen=True)
class DFlash(Speculative):
    """One guess for each place of the block, verified in one pass.

    Parameters
    ----------
    temperature : float
        0 takes the likeliest token, as greedy decoding does; above, tokens are sampled from the target's softmax at
        this temperature.

    Examples
    --------
    >>> DFlash().propose(5, np.array([[0.0, 1.0], [3.0, 2.0]], np.float32), np.random.default_rng()).tokens.tolist()
    [5, 1, 0]
    """

    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "decoder dflash")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"decoder dflash: temperature is {self.temperature}; give 0 (greedy) or more")

    @property
    def room(self) -> int:
        """See `Speculative`; a chain is no longer than the answer may become."""
        return 0

    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """See `Speculative`."""
        if not self.temperature:
            return int(logits.argmax())
        return draw(softmax(logits, self.temperature), rng)

    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """See `Speculative`."""
        if not self.temperature:
            guesses = guessed.argmax(axis=-1)
        else:
            guesses = np.array([draw(q, rng) for q in softmax(guessed, self.temperature)], np.int64)
        return Tree(np.concatenate([[token], guesses]), np.arange(len(guesses) + 1) - 1)

    def accept(self, tree: Tree, guessed: Floats, logits: Floats, rng: np.random.Generator) -> tuple[Ints, int]:
        """See `Speculative`."""
        if not self.temperature:
            return follow(tree, logits.argmax(axis=-1))
        p, q = softmax(logits, self.temperature), softmax(guessed, self.temperature)
        kept, token = accept_sampled(tree.tokens[1:], p, q, rng)
        return np.arange(kept + 1), token


def accept_sampled(guesses: Ints, p: Doubles, q: Doubles, rng: np.random.Generator) -> tuple[int, int]:
    """How many sampled guesses stand, and the token after them.

    Parameters
    ----------
    guesses : int64 (n,)
        Each drawn from its row of q.
    p : float64 (n + 1, vocab)
        The target's distribution at every guess, and after the last.
    q : float64 (n, vocab)
    rng : Generator
    """
    for i, guess in enumerate(guesses):
        if rng.random() * q[i, guess] >= p[i, guess]:
            rest = np.maximum(p[i] - q[i], 0)
            total = rest.sum()
            # Where p and q differ by rounding alone nothing is left, and p itself is as good.
            return i, draw(rest / total if total > 0 else p[i], rng)
    return len(guesses), draw(p[len(guesses)], rng)


def softmax(logits: Floats, temperature: float) -> Doubles:
    """Probabilities of the last axis, in float64."""
    found: Doubles = np.exp(log_softmax(logits / np.float32(temperature)))
    return found


def draw(probabilities: Doubles, rng: np.random.Generator) -> int:
    """A token drawn from probabilities (vocab,)."""
    ends = probabilities.cumsum()
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
