"""Score by the attention of the last prompt tokens, taken layer by layer while the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import Model, prefill_by_layer
from sp.ops.attention_probs import attention_probs
from sp.scoring.attention import AttentionScorer, Rotary, unrotate
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold


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
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    The memory held is one layer's keys plus the running (queries, tokens) result, at any depth.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

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
