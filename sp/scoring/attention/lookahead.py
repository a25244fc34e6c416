"""Scorers that ask with an answer: a draft of it, or the known one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.models import Cache, Hooks, LayerAttention, ModelConfig, decode_step, prefill_by_layer
from sp.ops.array_module import array_module
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, asked_rows, unrotated_keys, unrotated_rows
from sp.scoring.base import Importance, ScoreRequest, register_scorer


@dataclass(frozen=True)
class LookAhead:
    """What a drafter leaves that has read a prompt and gone on for some tokens."""

    queries: dict[int, Floats]  # by scored layer: of the last prompt token if that counts, then of the generated ones
    generated: tuple[int, ...]
    cache: Cache  # keys and values of the prompt and of the generated tokens
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

    keeps: ClassVar[bool] = False  # what it generates would have to be forgotten, which recurrent layers cannot

    queries: int = 8
    last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth is not None:
            raise ConfigError("scorer lookahead runs all layers of the drafter, since it generates; leave depth out")

    def reading_depth(self, config: ModelConfig) -> int | None:
        """All: it generates, which costs few operations beside the reading."""
        return None

    def score(self, request: ScoreRequest) -> Importance:
        """Prefill, generate the look-ahead, then reduce each layer's attention from its cached keys."""
        ahead = self.look_ahead(request)
        fold = Fold(self.reduction, request.by_head)
        for layer, queries in ahead.queries.items():
            keys = self.keys(ahead, layer, request)
            fold.add_layer(queries, keys, causal=False)
        return fold.importance(ahead.attend, ahead.generated)

    def keys(self, ahead: LookAhead, layer: int, request: ScoreRequest) -> PagedKV:
        """Keys of the prompt as they are scored."""
        at = ahead.cache.stored(layer)
        if self.rotary == "none":
            return unrotated_keys(at, request.positions, request.model, layer)
        return replace(at, tokens=len(request.ids))

    def look_ahead(self, request: ScoreRequest) -> LookAhead:
        """Read the prompt and generate, keeping the queries that count; where the context ends, so do they."""
        model, n = request.model, len(request.ids)
        captured: dict[int, list[Floats]] = {layer: [] for layer in self.scored_layers(model.config)}
        attend, position = self.attend(request), int(request.positions[-1])
        room = model.config.context - 1 - position
        new_tokens = max(1 - self.last, min(self.queries - self.last, room))

        def turned(layer: int, q: Floats, positions: Ints) -> Floats:
            q = asked_rows(q, model, layer)
            return q if self.rotary == "post" else unrotated_rows(q, positions, model, layer)

        def last(layer: int, q: Floats, cache: Cache) -> None:
            if layer in captured and self.last:  # a copy, so that the other queries can go
                captured[layer].append(turned(layer, q[-1:].copy(), request.positions[-1:]))

        def new(layer: int, q: Floats, cache: Cache) -> None:
            if layer in captured:
                captured[layer].append(turned(layer, q, np.array([position + len(generated)])))

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


@register_scorer("answer_attention")
@dataclass(frozen=True)
class AnswerAttentionScorer(LookaheadScorer):
    """Attention over the prompt of the tokens that the target answers with when it has read all of it.

    It saves no time. What it puts first is what the target looked at while it said so, and that no drafter can know:
    a bound for scorers by attention, not for all of them. Weights on text that is kept anyway count for nothing, so
    that the sink at the beginning of a prompt does not lift the chunk it stands in. The weights of one layer,
    ``4 queries heads tokens`` bytes, are held at a time.

    Parameters
    ----------
    queries : int
        Tokens of the answer, at most; it ends before an end-of-generation token unless that is all of it.
    last : bool
        Let the last prompt token count as the first of them: it predicts where the answer begins.
    over_layers : {"mean", "max"}
        Of what each layer's heads leave, see `Fold`.

    Notes
    -----
    The answer-informed oracle of CLAA (arXiv 2602.16054), which found that single layers rank unstably and that to
    aggregate over layers closes most of the gap.
    """

    reads_target = True
    oracle: ClassVar[bool] = True

    queries: int = 48
    last: bool = False
    over_heads: Literal["max", "mean"] = "mean"
    over_layers: Literal["mean", "max"] = "mean"

    def score(self, request: ScoreRequest) -> Importance:
        """Let the target answer, then reduce the attention of its answer layer by layer."""
        ahead = self.look_ahead(request)
        fold = Fold(self.reduction, request.by_head, over_layers=self.over_layers)
        rows = self.last + len(spoken(ahead.generated, request.eos_ids))
        for layer, queries in ahead.queries.items():
            keys = self.keys(ahead, layer, request)
            weights = attention_rows(queries[:rows], keys, causal=False)
            weights *= array_module(weights).asarray(~request.kept, np.float32)
            fold.add(weights)
        return fold.importance(ahead.attend, ahead.generated)


def spoken(generated: Sequence[int], eos_ids: Collection[int]) -> tuple[int, ...]:
    """Generated tokens without the one that ended them, unless there is no other."""
    ended = len(generated) > 1 and generated[-1] in eos_ids
    return tuple(generated[:-1] if ended else generated)
