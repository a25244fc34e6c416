"""Scorers that weigh attention by heads, layers or entropy before it is reduced, each after a paper."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.array_module import array_module
from sp.ops.attention.importance import Edges, attention_rows, chunk_means
from sp.ops.attention.kv_pages import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, LayerSet
from sp.scoring.base import Importance, ScoreRequest, register_scorer


@dataclass(frozen=True)
class ReweightedScorer(AttentionScorer):
    """Base of them. The weights of one layer, ``4 queries heads tokens`` bytes, are held at a time, and of `reweighted`
    one or two more arrays of that size."""

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce what `reweighted` makes of the tail's weights."""
        fold = Fold(self.reduction, request.by_head)

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            fold.add(self.reweighted(self.weights(q, keys), layer))

        return fold.importance(self.read(request, take))

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """What `reweighted` is given: softmax weights (heads, queries, tokens)."""
        return attention_rows(q, keys)

    @abstractmethod
    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Weights (heads, queries, tokens) as they count, in NumPy or on the device; those given may be changed."""


@register_scorer("entropy_weight")
@dataclass(frozen=True)
class EntropyWeightScorer(ReweightedScorer):
    """`tail` with each head's weights times ``1 - H / log n`` of their entropy H, averaged over the heads.

    Parameters
    ----------
    beta : float, optional
        Weigh by ``exp(-beta H)`` instead.
    """

    over_heads: Literal["max", "mean"] = "mean"
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None and not 0 <= self.beta < np.inf:
            raise ConfigError(f"beta must be a number from 0 on, not {self.beta}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        xp, tokens = array_module(weights), weights.shape[-1]
        terms = xp.log(xp.maximum(weights, np.float32(1e-30)))
        terms *= weights
        entropy = -terms.sum(axis=-1, keepdims=True)
        beta, most = self.beta, max(np.log(tokens), 1e-6)
        weights *= 1 - entropy * np.float32(1 / most) if beta is None else xp.exp(entropy * np.float32(-beta))
        return weights


@register_scorer("gemfilter")
@dataclass(frozen=True)
class GemFilterScorer(ReweightedScorer):
    """Logits of the last token in one filter layer, averaged over the heads before any softmax, then pooled.

    The paper's layers are 13 to 19 of 32; by default it is the middle one. Layers behind it are not run. The paper
    gives the kept tokens contiguous positions: ``positions=contiguous``.

    Notes
    -----
    GemFilter (arXiv 2409.17422).
    """

    queries: int | Literal["question"] = 1
    order: str = "heads,queries,pool"
    over_heads: Literal["max", "mean"] = "mean"
    pool: int = 5
    edges: Edges = "zero"
    layers: tuple[int, ...] | LayerSet | None = "middle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries != 1:
            raise ConfigError(f"scorer gemfilter asks from the last token alone; queries must be 1, not {self.queries}")

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """Logits (heads, 1, tokens)."""
        return attention_rows(q, keys, logits=True)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """As they are."""
        return weights


RANK_OFFSET = 60  # of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)


@register_scorer("head_vote")
@dataclass(frozen=True)
class HeadVoteScorer(ReweightedScorer):
    """Every head of every layer and query votes for chunks; a token scores its chunk's mean vote.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk.
    vote : {"count", "reciprocal"}
        One vote for each chunk among the best, or ``1 / (60 + rank)`` for every chunk.
    top : float
        Share of the chunks that get a vote when votes are counted; at least one does.
    """

    over_heads: Literal["max", "mean"] = "mean"
    pool: int = 1
    chunk_size: int = 32
    vote: Literal["count", "reciprocal"] = "count"
    top: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        if not 0 < self.top <= 1:
            raise ConfigError(f"top must be above 0 and at most 1, not {self.top}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        xp, tokens = array_module(weights), weights.shape[-1]
        means = chunk_means(weights, self.chunk_size)
        rank = xp.argsort(xp.argsort(-means, axis=-1), axis=-1)
        if self.vote == "count":
            votes = (rank < max(1, int(self.top * means.shape[-1]))).astype(np.float32)
        else:
            votes = (1 / (RANK_OFFSET + 1 + rank)).astype(np.float32)
        spread: Floats = xp.repeat(votes, self.chunk_size, axis=-1)[..., :tokens]
        return spread


LEAST_LEFT = 1e-6


@register_scorer("sink_masked")
@dataclass(frozen=True)
class SinkMaskedScorer(ReweightedScorer):
    """`tail` with no weight on the first `sink` and the last `recent` tokens.

    Parameters
    ----------
    sink, recent : int
        Tokens at both ends whose weights are set to zero.
    renormalise : bool
        Let the other weights of a query sum to one again, so that a head which mostly rests on its sink counts as much
        as any other; raised a million times at most, since what is left may be rounding.

    Notes
    -----
    Attention sinks: StreamingLLM (arXiv 2309.17453).
    """

    sink: int = 4
    recent: int = 0
    renormalise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sink", "recent"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        tokens = weights.shape[-1]
        weights[..., : self.sink] = 0
        weights[..., max(0, tokens - self.recent) :] = 0
        if self.renormalise:
            left = weights.sum(axis=-1, keepdims=True)
            weights /= array_module(left).maximum(left, np.float32(LEAST_LEFT))
        return weights


@register_scorer("snapkv")
@dataclass(frozen=True)
class SnapKVScorer(ReweightedScorer):
    """Attention of a window of last tokens: averaged over them, pooled in each head, then the maximum over heads.

    The window's own tokens get no vote and come first. Where SnapKV keeps other tokens in every head, a prompt has to
    be one for all: the maximum is the union of what heads want, ``over_heads=mean`` their vote.

    Notes
    -----
    SnapKV (arXiv 2404.14469).
    """

    queries: int | Literal["question"] = 32
    order: str = "queries,pool,heads"
    pool: int = 7

    def score(self, request: ScoreRequest) -> Importance:
        """See `ReweightedScorer`; the window scores as high as the best of the others."""
        found = super().score(request)
        scores = found.scores.copy()
        scores[len(scores) - self.query_count(request) :] = scores.max()
        return replace(found, scores=scores)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """No vote for the window."""
        weights[..., weights.shape[-1] - weights.shape[-2] :] = 0
        return weights
