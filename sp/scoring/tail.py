"""Score by the attention of the last prompt tokens, taken layer by layer while the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import check_type
from sp.errors import ConfigError
from sp.models import Model, prefill_by_layer
from sp.ops.attention_probs import attention_probs
from sp.ops.rope import rope
from sp.scoring.base import Importance, Scorer, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold, Reduction

Rotary = Literal["post", "none"]


def unrotate(x: Floats, positions: Ints, model: Model) -> Floats:
    """Undo rotary embedding: a rotation by the negative position."""
    return rope(x, -positions, model.config.rope_base, model.config.rope_dim)


@dataclass
class LayerScores:
    """Tap for one layer-major prefill: gathers a layer's keys chunk by chunk, scores it, lets go of it."""

    model: Model
    tokens: int
    queries: int
    rotary: Rotary
    fold: Fold
    keys: list[Floats]
    recent: Floats | None = None
    seen: int = 0

    def __call__(self, layer: int, q: Floats, k: Floats, positions: Ints) -> None:
        if self.rotary == "none":
            q = unrotate(q, positions[len(positions) - len(q) :], self.model)
            k = unrotate(k, positions, self.model)
        self.keys.append(k)
        self.recent = q if self.recent is None else np.concatenate([self.recent, q])
        self.recent = self.recent[-self.queries :]
        self.seen += len(k)
        if self.seen == self.tokens:
            limit = np.arange(self.tokens - len(self.recent), self.tokens)
            self.fold.add(attention_probs(self.recent, np.concatenate(self.keys), limit))
            self.keys, self.recent, self.seen = [], None, 0


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(Scorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    The memory held is one layer's keys plus the running (queries, tokens) result, at any depth.

    Parameters
    ----------
    queries : int
        Number of trailing prompt tokens whose attention counts.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, heads, pool_queries, pool, edges
        See `Reduction`; `pool_queries` is its `queries`.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

    queries: int = 8
    rotary: Rotary = "post"
    order: str = "pool,heads,queries"
    heads: Literal["max", "mean"] = "max"
    pool_queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Literal["renormalise", "zero"] = "renormalise"

    def __post_init__(self) -> None:
        check_queries(self.queries)
        self.reduction()

    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.heads, self.pool_queries, self.pool, self.edges)

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        model, n = request.model, len(request.ids)
        queries = min(self.queries, n)
        fold = Fold(self.reduction())
        tap = LayerScores(model, n, queries, self.rotary, fold, keys=[])
        cache = model.new_cache(n, layers=1)
        prefill_by_layer(
            model, request.ids, request.positions, cache,
            rows=queries, tap=tap, keep_kv=False, progress=request.progress,
        )  # fmt: skip
        return Importance(fold.result(), fold.heatmap())


def check_queries(queries: int) -> None:
    """ConfigError unless at least one query is asked for."""
    check_type(queries, int, "queries")
    if queries < 1:
        raise ConfigError(f"queries must be at least 1, not {queries}")
