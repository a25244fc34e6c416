"""Score by the attention of the last prompt token and of tokens the drafter generates after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import decode_step, prefill_by_layer
from sp.ops.attention_probs import attention_probs
from sp.scoring.attention import AttentionScorer, unrotate
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold


@register_scorer("lookahead")
@dataclass(frozen=True)
class LookaheadScorer(AttentionScorer):
    """Attention of the last prompt token and of `queries` - 1 greedily generated tokens.

    The softmax runs over prompt keys only. Keys of every attention layer stay cached until the last query
    is known, because the queries exist only after the whole prompt has been read. Generation stops early at an
    end-of-generation token, whose query still counts; one query means the last prompt token alone.

    Notes
    -----
    Source: SpecPrefill (arXiv 2502.02789), whose "LAH" variant generates 8 tokens.
    """

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
