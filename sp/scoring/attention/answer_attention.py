"""Score by the attention of the target's own answer: an oracle, which reads everything first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sp.ops.array_module import array_module
from sp.ops.attention.attention_rows import attention_rows
from sp.scoring.attention.attention import FoldByLayer, importance_of
from sp.scoring.attention.lookahead import LookaheadScorer
from sp.scoring.base import Importance, ScoreRequest, register_scorer


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
        Of what each layer's heads leave, see `FoldByLayer`.

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
        fold = FoldByLayer(self.reduction(), request.by_head, over_layers=self.over_layers)
        rows = self.last + len(spoken(ahead.generated, request.eos_ids))
        for layer, queries in ahead.queries.items():
            keys = self.keys(ahead.cache.stored(layer), request.positions, request.model)
            weights = attention_rows(queries[:rows], keys, causal=False)
            weights *= array_module(weights).asarray(~request.kept, np.float32)
            fold.add(weights)
        return importance_of(fold, ahead.attend, ahead.generated)


def spoken(generated: Sequence[int], eos_ids: Collection[int]) -> tuple[int, ...]:
    """Generated tokens without the one that ended them, unless there is no other."""
    ended = len(generated) > 1 and generated[-1] in eos_ids
    return tuple(generated[:-1] if ended else generated)
