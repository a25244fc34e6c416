"""Controls: scores that need no model, as a reference for the benefit of a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sp.errors import ConfigError
from sp.scoring.base import Importance, ModelFreeScorer, ScoreRequest, register_scorer


@register_scorer("random")
@dataclass(frozen=True)
class RandomScorer(ModelFreeScorer):
    """Uniform random scores, constant over runs of `run` tokens; expected needle recall is the keep ratio.

    Parameters
    ----------
    run : int
        Tokens that share one random number, so that the means of chunks do not average the randomness away.
    """

    place: ClassVar[int] = 0

    run: int = 32

    def __post_init__(self) -> None:
        _check_run(self.run)

    def score(self, request: ScoreRequest) -> Importance:
        """Draw the scores with the request's seed."""
        n = len(request.ids)
        draws = np.random.default_rng(request.seed).random(-(-n // self.run), dtype=np.float32)
        return Importance(np.repeat(draws, self.run)[:n])


@register_scorer("head_tail")
@dataclass(frozen=True)
class HeadTailScorer(ModelFreeScorer):
    """Highest at both ends of the prompt: truncation in the middle."""

    place: ClassVar[int] = 3

    def score(self, request: ScoreRequest) -> Importance:
        """Score each token by its distance from the middle of the prompt."""
        n = len(request.ids)
        return Importance(np.abs(np.arange(n, dtype=np.float32) - np.float32((n - 1) / 2)))


@register_scorer("recency")
@dataclass(frozen=True)
class RecencyScorer(ModelFreeScorer):
    """The later a token, the more important: truncation of the beginning."""

    place: ClassVar[int] = 2

    def score(self, request: ScoreRequest) -> Importance:
        """Score each token by its position in the prompt."""
        return Importance(np.arange(len(request.ids), dtype=np.float32))


@register_scorer("uniform")
@dataclass(frozen=True)
class UniformScorer(ModelFreeScorer):
    """Chunks distributed evenly over the prompt, however many are selected.

    The order is that of the binary van der Corput sequence: any number of its first chunks leave gaps of nearly equal
    size.

    Parameters
    ----------
    run : int
        Tokens of a chunk, which should be the chunk size of the selector.
    """

    place: ClassVar[int] = 1

    run: int = 32

    def __post_init__(self) -> None:
        _check_run(self.run)

    def score(self, request: ScoreRequest) -> Importance:
        """Score each token by the rank of its chunk: when the sequence, stretched over the prompt, first hits it."""
        n = len(request.ids)
        chunks = -(-n // self.run)
        bits = (chunks - 1).bit_length()
        points = np.arange(1 << bits)
        mirrored = np.zeros_like(points)
        for bit in range(bits):
            mirrored |= ((points >> bit) & 1) << (bits - 1 - bit)
        # The sequence has a power of two of points, so several may hit one chunk; the first decides its rank.
        _, first = np.unique(mirrored * chunks >> bits, return_index=True)
        rank = np.argsort(np.argsort(first))
        return Importance(np.repeat((1 - rank / chunks).astype(np.float32), self.run)[:n])


@register_scorer("oracle")
@dataclass(frozen=True)
class OracleScorer(ModelFreeScorer):
    """One on the needle, zero elsewhere: the upper bound of any selection, for prompts with a known needle."""

    place: ClassVar[int] = 7
    oracle: ClassVar[bool] = True

    def score(self, request: ScoreRequest) -> Importance:
        """Return the needle mask; ConfigError if the prompt names no needle."""
        if not request.needle.any():
            raise ConfigError("scorer oracle needs a prompt with a known needle")
        return Importance(request.needle.astype(np.float32))


def _check_run(run: int) -> None:
    if run < 1:
        raise ConfigError(f"run must be at least 1, not {run}")
