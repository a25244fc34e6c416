"""Score by the attention of the last prompt tokens, taken layer by layer while the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass

from sp.arrays import Floats
from sp.models import Cache, read_by_layer
from sp.scoring.attention import AttentionScorer, importance_of
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    The memory held is the stream, one layer's queries, keys and values and the running (queries, tokens) result, at any
    depth. Layers behind the last that counts are not run, and that one does not attend.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        model, n = request.model, len(request.ids)
        queries = min(self.queries, n)
        scored = self.scored_layers(model.config)
        attend, fold = self.attend(), Fold(self.reduction(), request.by_head)

        def watch(layer: int, q: Floats, cache: Cache) -> None:
            if layer in scored:
                rows = self.rows(q[-queries:], request.positions[-queries:], model)
                fold.add_layer(rows, self.keys(cache.stored(layer), request.positions, model), causal=True)

        read_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1), watch,
            attend=attend, rows=queries, depth=scored[-1] + 1, progress=request.progress,
        )  # fmt: skip
        return importance_of(fold, attend)
