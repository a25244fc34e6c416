"""Scorers that reweight attention by heads, layers or entropy before its reduction, each after a paper."""

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
    """Base of scorers that change attention weights before the reduction.

    The weights of one layer, ``4 queries heads tokens`` bytes, are in memory at a time, and one or two more arrays of
    that size in `reweighted`.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the result of `reweighted` for the tail's weights."""
        fold = Fold(self.reduction, request.by_head)

        def fold_layer(layer: int, q: Floats, keys: PagedKV) -> None:
            fold.add(self.reweighted(self.weights(q, keys), layer))

        return fold.importance(self.visit_layers(request, fold_layer))

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """Return the argument of `reweighted`: softmax weights (heads, queries, tokens)."""
        return attention_rows(q, keys)

    @abstractmethod
    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Return the weights (heads, queries, tokens) that count, in NumPy or on the device; may work in place."""


@register_scorer("entropy_weight")
@dataclass(frozen=True)
class EntropyWeightScorer(ReweightedScorer):
    """`tail` with each head's weights times ``1 - H / log n`` of their entropy H, averaged over the heads.

    Parameters
    ----------
    beta : float, optional
        Multiply by ``exp(-beta H)`` instead.
    """

    over_heads: Literal["max", "mean"] = "mean"
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None and not 0 <= self.beta < np.inf:
            raise ConfigError(f"beta must be a number from 0 on, not {self.beta}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Multiply the weights of each head by a function of their entropy."""
        xp, tokens = array_module(weights), weights.shape[-1]
        terms = xp.log(xp.maximum(weights, np.float32(1e-30)))  # w log w is 0 for w = 0
        terms *= weights
        entropy = -terms.sum(axis=-1, keepdims=True)
        beta, most = self.beta, max(np.log(tokens), 1e-6)
        weights *= 1 - entropy * np.float32(1 / most) if beta is None else xp.exp(entropy * np.float32(-beta))
        return weights


@register_scorer("gemfilter")
@dataclass(frozen=True)
class GemFilterScorer(ReweightedScorer):
    """Logits of the last token in one filter layer, averaged over the heads before any softmax, then pooled.

    The paper's layers are 13 to 19 of 32; the default is the middle one. Later layers are not run. The paper gives the
    selected tokens contiguous positions: ``positions=contiguous``.

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
            raise ConfigError(
                f"scorer gemfilter has the last token as its query; queries must be 1, not {self.queries}"
            )

    def weights(self, q: Floats, keys: PagedKV) -> Floats:
        """Return the logits (heads, 1, tokens)."""
        return attention_rows(q, keys, logits=True)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Return the logits unchanged."""
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
        Share of the chunks that get a vote with ``count``; at least one chunk does.
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
        """Replace each weight by the vote for its chunk."""
        xp, tokens = array_module(weights), weights.shape[-1]
        means = chunk_means(weights, self.chunk_size)
        rank = xp.argsort(xp.argsort(-means, axis=-1), axis=-1)  # of each chunk in its head and query, 0 for the best
        if self.vote == "count":
            votes = (rank < max(1, int(self.top * means.shape[-1]))).astype(np.float32)
        else:
            votes = (1 / (RANK_OFFSET + 1 + rank)).astype(np.float32)
        by_token: Floats = xp.repeat(votes, self.chunk_size, axis=-1)[..., :tokens]
        return by_token


LEAST_LEFT = 1e-6  # sum of remaining weights below which they are rounding errors and are not scaled up to one


@register_scorer("sink_masked")
@dataclass(frozen=True)
class SinkMaskedScorer(ReweightedScorer):
    """`tail` with no weight on the first `sink` and the last `recent` tokens.

    Parameters
    ----------
    sink, recent : int
        Tokens at both ends whose weights are set to zero.
    renormalise : bool
        Scale the other weights of a query to sum to one again, so that a head with most of its weight on the sink
        counts as much as any other; by a factor of a million at most, because the rest may be rounding errors.

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
        """Set the weights at both ends to zero, and renormalise the others."""
        tokens = weights.shape[-1]
        weights[..., : self.sink] = 0
        weights[..., max(0, tokens - self.recent) :] = 0
        if self.renormalise:
            remaining = weights.sum(axis=-1, keepdims=True)
            weights /= array_module(remaining).maximum(remaining, np.float32(LEAST_LEFT))
        return weights


@register_scorer("snapkv")
@dataclass(frozen=True)
class SnapKVScorer(ReweightedScorer):
    """Attention of a window of last tokens: averaged over them, pooled in each head, then the maximum over heads.

    The window's own tokens get no vote and rank first. SnapKV selects different tokens for every head, but a prompt has
    to be the same for all: the maximum is the union of the heads' choices, ``over_heads=mean`` their vote.

    Notes
    -----
    SnapKV (arXiv 2404.14469).
    """

    queries: int | Literal["question"] = 32
    order: str = "queries,pool,heads"
    pool: int = 7

    def score(self, request: ScoreRequest) -> Importance:
        """Score as `ReweightedScorer` does, and give the window the highest score of the other tokens."""
        importance = super().score(request)
        scores = importance.scores.copy()
        scores[len(scores) - self.query_count(request) :] = scores.max()
        return replace(importance, scores=scores)

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """Set the weights on the window to zero."""
        weights[..., weights.shape[-1] - weights.shape[-2] :] = 0
        return weights
