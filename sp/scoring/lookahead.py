"""Score by the attention of the last prompt token and of tokens the drafter generates after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy
from sp.models import Cache, decode_step, prefill_by_layer
from sp.scoring.attention import AttentionScorer, importance_of
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reduction import Fold


@register_scorer("lookahead")
@dataclass(frozen=True)
class LookaheadScorer(AttentionScorer):
    """Attention of the last prompt token and of `queries` - 1 greedily generated tokens.

    The softmax runs over prompt keys only. Keys and values of every attention layer stay cached until the last query is
    known, because the queries exist only after the whole prompt has been read. Generation stops early at an
    end-of-generation token, whose query still counts; one query means the last prompt token alone. A drafter that
    generates needs all its layers, so there is no `depth`.

    Notes
    -----
    Source: SpecPrefill (arXiv 2502.02789), whose "LAH" variant generates 8 tokens.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth is not None:
            raise ConfigError("scorer lookahead runs all layers of the drafter, since it generates; leave depth out")

    def score(self, request: ScoreRequest) -> Importance:
        """Prefill, generate the look-ahead, then reduce each layer's attention from its cached keys."""
        model, n = request.model, len(request.ids)
        scored = self.scored_layers(model.config)
        captured: dict[int, list[Floats]] = {layer: [] for layer in scored}
        attend = self.attend()

        def watch(layer: int, q: Floats, cache: Cache) -> None:
            if layer in captured:  # a copy, so that the other queries can go
                captured[layer].append(self.rows(q[-1:].copy(), request.positions[-1:], model))

        def tap(layer: int, q: Floats, k: Floats, positions: Ints) -> None:
            if layer in captured:
                captured[layer].append(self.rows(q, positions, model))

        cache = model.new_cache(n + self.queries)
        logits = prefill_by_layer(
            model, request.ids, request.positions, cache, watch=watch, attend=attend, progress=request.progress
        )
        position = int(request.positions[-1])
        generated: list[int] = []
        while len(generated) < self.queries - 1:
            token = int(logits.argmax())
            generated.append(token)
            logits = decode_step(model, token, position + len(generated), cache, tap=tap)
            if token in request.eos_ids:
                break
        fold = Fold(self.reduction(), request.by_head)
        xp = np if model.device == "cpu" else import_cupy()
        for layer, queries in captured.items():
            fold.add_layer(
                xp.concatenate(queries), self.keys(cache.stored(layer), request.positions, model), causal=False
            )
        return importance_of(fold, attend, tuple(generated))
