"""Score by the attention of the last prompt token and of tokens the drafter generates after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import decode_step, prefill_by_layer
from sp.ops.attention_probs import attention_probs
from sp.scoring.base import Importance, Scorer, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold, Reduction
from sp.scoring.tail import Rotary, check_queries, unrotate


@register_scorer("lookahead")
@dataclass(frozen=True)
class LookaheadScorer(Scorer):
    """Attention of the last prompt token and of `queries` - 1 greedily generated tokens.

    The softmax runs over prompt keys only. Keys of every attention layer stay cached until the last query
    is known, because the queries exist only after the whole prompt has been read.

    Parameters
    ----------
    queries : int
        Query tokens in all; 1 means the last prompt token alone. Generation stops early at an
        end-of-generation token, whose query still counts.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, heads, pool_queries, pool, edges
        See `Reduction`; `pool_queries` is its `queries`.

    Notes
    -----
    Source: SpecPrefill (arXiv 2502.02789), whose "LAH" variant generates 8 tokens.
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
        """Prefill, generate the look-ahead, then reduce each layer's attention from its cached keys."""
        model, n = request.model, len(request.ids)
        captured: dict[int, list[Floats]] = {}

        def keep_last(layer: int, q: Floats, k: Floats, positions: Ints) -> None:
            q = q[-1:]  # empty in the last layer of all chunks but the last
            if self.rotary == "none":
                q = unrotate(q, positions[len(positions) - len(q) :], model)
            captured.setdefault(layer, []).append(q)

        def keep_only_last(layer: int, q: Floats, k: Floats, positions: Ints) -> None:
            keep_last(layer, q, k, positions)
            del captured[layer][:-1]

        cache = model.new_cache(n + self.queries)
        logits = prefill_by_layer(
            model, request.ids, request.positions, cache, tap=keep_only_last, progress=request.progress
        )
        position = int(request.positions[-1])
        generated: list[int] = []
        while len(generated) < self.queries - 1:
            token = int(logits.argmax())
            generated.append(token)
            logits = decode_step(model, token, position + len(generated), cache, tap=keep_last)
            if token in request.eos_ids:
                break
        fold = Fold(self.reduction())
        for layer, queries in captured.items():
            q = np.concatenate(queries)
            k = cache.keys(layer)[:n]
            if self.rotary == "none":
                k = unrotate(k, request.positions, model)
            fold.add(attention_probs(q, k, np.full(len(q), n - 1)))
        return Importance(fold.result(), fold.heatmap(), tuple(generated))
