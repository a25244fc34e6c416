"""Score by the attention of the last prompt token and of tokens the drafter generates after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models import Cache, Hooks, LayerAttention, ModelConfig, decode_step, prefill_by_layer
from sp.ops.array_module import array_module
from sp.scoring.attention.attention import AttentionScorer, Fold, importance_of
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer


@dataclass(frozen=True)
class LookAhead:
    """What a drafter leaves that has read a prompt and gone on for some tokens.

    Attributes
    ----------
    queries : dict of int to float (queries, heads, head_dim)
        By scored layer: of the last prompt token if that counts, then of the generated ones.
    generated : tuple of int
    cache : Cache
        Keys and values of the prompt and of the generated tokens.
    attend : LayerAttention
    """

    queries: dict[int, Floats]
    generated: tuple[int, ...]
    cache: Cache
    attend: LayerAttention


@register_scorer("lookahead")
@dataclass(frozen=True)
class LookaheadScorer(AttentionScorer):
    """Attention of the last prompt token and of `queries` - 1 greedily generated tokens.

    The softmax runs over prompt keys only. Keys and values of every attention layer stay cached until the last query is
    known, because the queries exist only after the whole prompt has been read. Generation stops early at an
    end-of-generation token, whose query still counts; one query means the last prompt token alone. A drafter that
    generates needs all its layers, so there is no `depth`.

    Parameters
    ----------
    last : bool
        Without it all `queries` are of generated tokens.

    Notes
    -----
    Source: SpecPrefill (arXiv 2502.02789), whose "LAH" variant generates 8 tokens. Ports of it differ in whether the
    last prompt token counts.
    """

    queries: int = 8
    last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth is not None:
            raise ConfigError("scorer lookahead runs all layers of the drafter, since it generates; leave depth out")

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """None: what it generates would have to be forgotten, which recurrent layers cannot."""
        return None

    def reading_depth(self, config: ModelConfig) -> int | None:
        """All: it generates."""
        return None

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of reading the prompt; those of generation are few."""
        return ReadingScorer.flops(self, config, tokens)

    def score(self, request: ScoreRequest) -> Importance:
        """Prefill, generate the look-ahead, then reduce each layer's attention from its cached keys."""
        ahead = self.look_ahead(request)
        fold = Fold(self.reduction(), request.by_head)
        for layer, queries in ahead.queries.items():
            keys = self.keys(ahead.cache.stored(layer), request.positions, request.model)
            fold.add_layer(queries, keys, causal=False)
        return importance_of(fold, ahead.attend, ahead.generated)

    def look_ahead(self, request: ScoreRequest) -> LookAhead:
        """Read the prompt and generate, keeping the queries that count; where the context ends, so do they."""
        model, n = request.model, len(request.ids)
        captured: dict[int, list[Floats]] = {layer: [] for layer in self.scored_layers(model.config)}
        attend, position = self.attend(request), int(request.positions[-1])
        room = model.config.context - 1 - position
        new_tokens = max(1 - self.last, min(self.queries - self.last, room))

        def last(layer: int, q: Floats, cache: Cache) -> None:
            if layer in captured and self.last:  # a copy, so that the other queries can go
                captured[layer].append(self.rows(q[-1:].copy(), request.positions[-1:], model))

        def new(layer: int, q: Floats, cache: Cache) -> None:
            if layer in captured:
                captured[layer].append(self.rows(q, np.array([position + len(generated)]), model))

        cache = model.new_cache(n + new_tokens)
        generated, hooks = list[int](), Hooks(on_attention=last, progress=request.progress)
        logits = prefill_by_layer(model, request.ids, request.positions, cache, attend=attend, hooks=hooks)
        while len(generated) < new_tokens:
            token = int(logits.argmax())
            generated.append(token)
            logits = decode_step(model, token, position + len(generated), cache, hooks=Hooks(new))
            if token in request.eos_ids:
                break
        queries = {layer: array_module(q[0]).concatenate(q) for layer, q in captured.items()}
        return LookAhead(queries, tuple(generated), cache, attend)
