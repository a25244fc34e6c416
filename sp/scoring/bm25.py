"""Score chunks by the words they share with the question, rare ones first: no model at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sp.config import check_fields
from sp.errors import ConfigError
from sp.scoring.attention.attention import question_start
from sp.scoring.base import Importance, ModelFreeScorer, ScoreRequest, register_scorer


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
