"""Score by runs of tokens that the question repeats: the seed system's anchors, and no model at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.scoring.base import Importance, ModelFreeScorer, ScoreRequest, register_scorer

RADII = ((1024, 2), (2048, 4))
"""Chunks around an anchor by the chunks of the prompt: below the first number so many, and 8 in longer prompts."""


@dataclass(frozen=True)
class Anchors:
    """Which runs of tokens count as anchors.

    Parameters
    ----------
    ngram : int
        Length of the runs.
    most_hits : int
        A run that occurs more often in the text is no anchor.
    radius : int or "by_length"
        Chunks on either side of an anchor's that are marked with it; ``by_length`` is 2, 4 or 8 as the prompt grows.
    asked : int
        Take the runs of the last so many tokens, as the seed does; 0 takes those of the question.
    chunk_size : int
    """

    ngram: int = 4
    most_hits: int = 8
    radius: int | Literal["by_length"] = 2
    asked: int = 0
    chunk_size: int = 32

    def __post_init__(self) -> None:
        check_fields(self, "anchors")
        for name, least in (("ngram", 1), ("most_hits", 1), ("asked", 0), ("chunk_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not isinstance(self.radius, str) and self.radius < 0:
            raise ConfigError(f"radius must be at least 0, not {self.radius}")

    def mark(self, request: ScoreRequest) -> Floats:
        """float32 (n,): in the chunk of an anchor 1 / its hits, less by a share for each chunk of distance; else 0."""
        ids, n = request.ids, len(request.ids)
        asked = request.question if not self.asked else np.arange(n) >= n - self.asked
        chunks = -(-n // self.chunk_size)
        marks = np.zeros(chunks, np.float32)
        if n >= self.ngram:
            grams = np.lib.stride_tricks.sliding_window_view(ids, self.ngram)
            inside = np.lib.stride_tricks.sliding_window_view(asked, self.ngram)
            _, kind = np.unique(grams, axis=0, return_inverse=True)
            text = ~inside.any(axis=1)
            hits = np.bincount(kind[text], minlength=kind.max() + 1)
            wanted = np.zeros(len(hits), bool)
            wanted[kind[inside.all(axis=1)]] = True
            wanted &= (hits > 0) & (hits <= self.most_hits)
            at = np.flatnonzero(text & wanted[kind])
            np.maximum.at(marks, at // self.chunk_size, 1 / hits[kind[at]].astype(np.float32))
        return np.repeat(self._spread(marks), self.chunk_size)[:n]

    def _spread(self, marks: Floats) -> Floats:
        by_length = next((radius for below, radius in RADII if len(marks) < below), 8)
        radius = by_length if isinstance(self.radius, str) else self.radius
        found = marks.copy()
        for distance in range(1, min(radius, len(marks) - 1) + 1):
            lower: Floats = (marks * (1 - distance / (radius + 1))).astype(np.float32)
            np.maximum(found[distance:], lower[:-distance], out=found[distance:])
            np.maximum(found[:-distance], lower[distance:], out=found[:-distance])
        return found


@register_scorer("lexical")
@dataclass(frozen=True)
class LexicalScorer(Anchors, ModelFreeScorer):
    """Chunks with a run of tokens that the question has too, and their neighbours; rarer runs first.

    Fields are those of `Anchors`.

    Notes
    -----
    Lucebox keeps such chunks whatever its drafter says, which finds any needle whose wording the question repeats.
    """

    place: ClassVar[int] = 4

    def score(self, request: ScoreRequest) -> Importance:
        return Importance(self.mark(request))
