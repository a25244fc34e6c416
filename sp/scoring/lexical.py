"""Scorers by the words of the question: the rare ones, BM25, and the embeddings of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Hooks, ModelConfig, stream_layer_major
from sp.ops.array_module import array_module, on_host
from sp.scoring.base import (
    Importance,
    ModelFreeScorer,
    ReadingScorer,
    ScoreRequest,
    densities,
    question_start,
    register_scorer,
)

RADII = ((1024, 2), (2048, 4))
"""Pairs (chunks of the prompt, radius): the radius in prompts of fewer chunks; longer prompts have a radius of 8."""


@dataclass(frozen=True)
class Anchors:
    """Options that decide which runs of tokens are anchors: runs of the question that the text repeats.

    Parameters
    ----------
    ngram : int
        Length of the runs in tokens.
    most_hits : int
        A run that occurs more often in the text is not an anchor.
    radius : int or "by_length"
        Chunks on either side of an anchor's that are marked with it; ``by_length`` is 2, 4 or 8 as the prompt grows.
    asked : int
        Number of last tokens whose runs are taken, as the seed project does; 0 takes those of the question.
    chunk_size : int
        Tokens of a chunk.
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
        """Return the marks of tokens, float32 (n,): 1 / hits in an anchor's chunk, less with distance, 0 elsewhere."""
        ids, n = request.ids, len(request.ids)
        query = request.question if not self.asked else np.arange(n) >= n - self.asked
        chunks = -(-n // self.chunk_size)
        marks = np.zeros(chunks, np.float32)
        if n >= self.ngram:
            grams = np.lib.stride_tricks.sliding_window_view(ids, self.ngram)
            inside = np.lib.stride_tricks.sliding_window_view(query, self.ngram)
            _, kind = np.unique(grams, axis=0, return_inverse=True)
            text = ~inside.any(axis=1)  # runs that do not touch the query, which repeats itself
            hits = np.bincount(kind[text], minlength=kind.max() + 1)
            is_anchor = np.zeros(len(hits), bool)
            is_anchor[kind[inside.all(axis=1)]] = True
            is_anchor &= (hits > 0) & (hits <= self.most_hits)
            starts = np.flatnonzero(text & is_anchor[kind])
            np.maximum.at(marks, starts // self.chunk_size, 1 / hits[kind[starts]].astype(np.float32))
        return np.repeat(self._spread(marks), self.chunk_size)[:n]

    def _spread(self, marks: Floats) -> Floats:
        by_length = next((radius for below, radius in RADII if len(marks) < below), 8)
        radius = by_length if isinstance(self.radius, str) else self.radius
        highest = marks.copy()
        for distance in range(1, min(radius, len(marks) - 1) + 1):
            lower: Floats = (marks * (1 - distance / (radius + 1))).astype(np.float32)
            np.maximum(highest[distance:], lower[:-distance], out=highest[distance:])
            np.maximum(highest[:-distance], lower[distance:], out=highest[:-distance])
        return highest


@register_scorer("lexical")
@dataclass(frozen=True)
class LexicalScorer(Anchors, ModelFreeScorer):
    """Chunks with a run of tokens that the question has too, and their neighbours; rarer runs first.

    Options are those of `Anchors`.

    Notes
    -----
    Lucebox selects such chunks whatever its drafter says, which finds any needle whose wording the question repeats.
    """

    place: ClassVar[int] = 4

    def score(self, request: ScoreRequest) -> Importance:
        """Return the marks of `Anchors`."""
        return Importance(self.mark(request))


@register_scorer("bm25")
@dataclass(frozen=True)
class BM25Scorer(ModelFreeScorer):
    """Okapi BM25 with chunks as documents and the distinct tokens of the question as the query.

    ``sum_t idf(t) f (k1 + 1) / (f + k1 (1 - b + b length / mean length))``, f the count of t in the chunk and
    ``idf = log(1 + (N - n + 0.5) / (n + 0.5))`` for n of N chunks that hold t. The question's own tokens are not
    counted in any chunk, and score zero.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk, which all have the same score.
    k1, b : float
        Saturation of the count, and the penalty for the length of a chunk.

    Notes
    -----
    Robertson et al., "Okapi at TREC-3", 1994; as a prompt compressor in LongLLMLingua (arXiv 2310.06839).
    """

    place: ClassVar[int] = 5

    chunk_size: int = 32
    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        check_fields(self, "scorer bm25")
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        if not 0 <= self.k1 < np.inf:
            raise ConfigError(f"k1 must be a number from 0 on, not {self.k1}")
        if not 0 <= self.b <= 1:
            raise ConfigError(f"b must be from 0 to 1, not {self.b}")

    def score(self, request: ScoreRequest) -> Importance:
        """Score every chunk against the question."""
        n = len(request.ids)
        question_start(request)  # raises where there is no question
        terms = np.unique(request.ids[request.question])
        chunk = np.arange(n) // self.chunk_size
        chunks = int(chunk[-1]) + 1
        text = ~request.question
        term = np.searchsorted(terms, request.ids)
        known = text & (terms[np.minimum(term, len(terms) - 1)] == request.ids)
        counts = np.zeros((len(terms), chunks))
        np.add.at(counts, (term[known], chunk[known]), 1)
        length = np.bincount(chunk[text], minlength=chunks)
        holding = (counts > 0).sum(axis=1)
        idf = np.log1p((chunks - holding + 0.5) / (holding + 0.5))
        damping = self.k1 * (1 - self.b + self.b * length / max(1.0, length.mean()))
        scores = idf @ (counts * (self.k1 + 1) / np.maximum(counts + damping, 1e-9))
        return Importance(np.where(text, scores[chunk], 0).astype(np.float32))


@register_scorer("embedding")
@dataclass(frozen=True)
class EmbeddingScorer(ReadingScorer):
    """Cosine of a chunk's mean hidden state and the question's: retrieval by embeddings, with the drafter as encoder.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk, which all have the same score.
    centred : bool
        Subtract the mean hidden state of all chunks first, because hidden states of one text have similar directions.
    depth : int, optional
        Number of the drafter's layers to run; all by default.
    """

    chunk_size: int = 32
    centred: bool = True
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the number of layers before the hidden states that are compared."""
        return config.layers if self.depth is None else self.depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and compare chunks with the question."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        question_start(request)  # raises where there is no question
        x = stream_layer_major(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=self.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        query = x[model.place(request.question.nonzero()[0])].mean(axis=0)
        chunks = _row_means(x, self.chunk_size)
        centre = chunks.mean(axis=0) if self.centred else 0
        chunks, query = chunks - centre, query - centre
        lengths = (chunks**2).sum(axis=1) * (query**2).sum()
        cosine = (chunks * query).sum(axis=1) / (lengths + np.float32(1e-20)) ** 0.5
        scores = np.repeat(on_host(cosine).astype(np.float32), self.chunk_size)[:n]
        return Importance(scores, densities=densities(attend))


def _row_means(x: Any, size: int) -> Any:
    """Return the means of x (n, hidden) over chunks of `size` rows; a short last chunk has its own mean."""
    xp, whole = array_module(x), len(x) // size
    parts = [x[: whole * size].reshape(whole, size, x.shape[1]).mean(axis=1)]
    if len(x) % size:
        parts.append(x[whole * size :].mean(axis=0)[None])
    return xp.concatenate(parts)
