"""Controls: scores that need no drafter, to tell what the drafter's reading is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.errors import ConfigError
from sp.scoring.base import Importance, Scorer, ScoreRequest, register_scorer


@register_scorer("random")
@dataclass(frozen=True)
class RandomScorer(Scorer):
    """Uniform random scores, constant over runs of `run` tokens; expected needle recall is the keep ratio.

    Parameters
    ----------
    run : int
        Tokens that share one draw, so that chunk means do not average the randomness away.
    """

    run: int = 32

    def score(self, request: ScoreRequest) -> Importance:
        """Draw from the request's seed."""
        n = len(request.ids)
        draws = np.random.default_rng(request.seed).random(-(-n // self.run), dtype=np.float32)
        return Importance(np.repeat(draws, self.run)[:n])


@register_scorer("head_tail")
@dataclass(frozen=True)
class HeadTailScorer(Scorer):
    """Highest at both ends of the prompt: truncation in the middle."""

    def score(self, request: ScoreRequest) -> Importance:
        """Distance from the middle of the prompt."""
        n = len(request.ids)
        return Importance(np.abs(np.arange(n, dtype=np.float32) - np.float32((n - 1) / 2)))


@register_scorer("lexical")
@dataclass(frozen=True)
class LexicalScorer(Scorer):
    """Share of the n-grams around a token that also stand in the question; reads no model at all.

    Parameters
    ----------
    ngram : int
        Length of the matched token runs.
    """

    ngram: int = 3

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise ConfigError(f"ngram must be at least 1, not {self.ngram}")

    def score(self, request: ScoreRequest) -> Importance:
        """Mark every token of a run that repeats a run of the question, rarer runs higher."""
        ids, n = request.ids, len(request.ids)
        scores = np.zeros(n, np.float32)
        if n < self.ngram:
            return Importance(scores)
        grams = np.lib.stride_tricks.sliding_window_view(ids, self.ngram)
        asked = np.lib.stride_tricks.sliding_window_view(request.question, self.ngram).all(axis=1)
        _, inverse, counts = np.unique(grams, axis=0, return_inverse=True, return_counts=True)
        wanted = np.isin(inverse, inverse[asked])
        for start in np.flatnonzero(wanted):
            window = scores[start : start + self.ngram]
            np.maximum(window, 1 / counts[inverse[start]], out=window)
        return Importance(scores)


@register_scorer("oracle")
@dataclass(frozen=True)
class OracleScorer(Scorer):
    """One on the needle, zero elsewhere: the upper bound of any selection, for prompts with a known needle."""

    def score(self, request: ScoreRequest) -> Importance:
        """Copy the needle mask; ConfigError if the prompt names no needle."""
        if not request.needle.any():
            raise ConfigError("scorer oracle needs a prompt with a known needle")
        return Importance(request.needle.astype(np.float32))
