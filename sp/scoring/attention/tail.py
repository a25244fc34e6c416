"""Score by the attention of the last prompt tokens, taken layer by layer while the drafter reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Floats
from sp.ops.attention.importance import in_kernel
from sp.scoring.attention.attention import AttentionScorer, Fold, importance_of
from sp.scoring.base import HEATMAP_CHUNK, Importance, ScoreRequest, register_scorer


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    Where the chat template opens or closes thinking behind the question, it is that of the question's last tokens, and
    the drafter reads no further: the marks would be most of the queries, and a drafter asked by them finds few needles.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        fold = Fold(self.reduction(), request.by_head)
        asking = request if self.queries == "question" else without_markup(request)
        like = (fold.reduction, fold.by_head) if in_kernel(fold.reduction) else None
        found = importance_of(fold, self.read(asking, lambda _, q, keys: fold.add_layer(q, keys, causal=True), like))
        return found if asking is request else padded(found, len(request.ids))


def without_markup(request: ScoreRequest) -> ScoreRequest:
    """The request up to its last token that asks."""
    end = request.asked
    if end is None or end >= len(request.ids):
        return request
    cut = {name: getattr(request, name)[:end] for name in ("ids", "positions", "question", "needle")}
    return replace(request, **cut, spans=None if request.spans is None else request.spans[:end])


def padded(found: Importance, tokens: int) -> Importance:
    """The same for so many tokens: those behind the queries have no importance."""

    def pad(values: Floats | None, size: int) -> Floats | None:
        if values is None:
            return None
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])

    chunks = -(-tokens // HEATMAP_CHUNK)
    scores = np.pad(found.scores, (0, tokens - len(found.scores)))
    return replace(found, scores=scores, by_layer=pad(found.by_layer, chunks), by_head=pad(found.by_head, chunks))
