"""Scorers by the words of the question: the rare ones, BM25, and the embeddings of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Hooks, ModelConfig, stream_by_layer
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


@register_scorer("bm25")
@dataclass(frozen=True)
class BM25Scorer(ModelFreeScorer):
    """Okapi BM25 with chunks as documents and the distinct tokens of the question as the query.

    ``sum_t idf(t) f (k1 + 1) / (f + k1 (1 - b + b length / mean length))``, f the count of t in the chunk and
    ``idf = log(1 + (N - n + 0.5) / (n + 0.5))`` for n of N chunks that hold t. The question's own tokens are no
    part of any chunk's count, and score zero.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk; all score alike.
    k1, b : float
        Saturation of the count, and how much length counts against a chunk.

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
        """See the class."""
        n = len(request.ids)
        question_start(request)
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
        Tokens of a chunk; all score alike.
    centred : bool
        Take the mean hidden state of all chunks away first, for hidden states of one text point much the same way.
    depth : int, optional
        Run only so many of the drafter's layers.
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
        """Those whose stream is compared."""
        return config.layers if self.depth is None else self.depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and compare chunks with the question."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        question_start(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=self.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        asked = x[model.place(request.question.nonzero()[0])].mean(axis=0)
        chunks = _row_means(x, self.chunk_size)
        centre = chunks.mean(axis=0) if self.centred else 0
        chunks, asked = chunks - centre, asked - centre
        lengths = (chunks**2).sum(axis=1) * (asked**2).sum()
        cosine = (chunks * asked).sum(axis=1) / (lengths + np.float32(1e-20)) ** 0.5
        scores = np.repeat(on_host(cosine).astype(np.float32), self.chunk_size)[:n]
        return Importance(scores, densities=densities(attend))


def _row_means(x: Any, size: int) -> Any:
    """Means over `size` rows of x (n, hidden) at a time; the last over those that are left."""
    xp, whole = array_module(x), len(x) // size
    parts = [x[: whole * size].reshape(whole, size, x.shape[1]).mean(axis=1)]
    if len(x) % size:
        parts.append(x[whole * size :].mean(axis=0)[None])
    return xp.concatenate(parts)
