"""Score by the heads of a drafter's file that are known to find what a question asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models import ModelConfig, Retrieval
from sp.models.config import first_layers
from sp.ops.array_module import array_module
from sp.ops.attention.attention_rows import attention_rows
from sp.ops.attention.importance import in_kernel
from sp.ops.attention.paged_kv import PagedKV
from sp.scoring.attention.attention import Fold, importance_of
from sp.scoring.attention.tail import TailScorer, padded
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer

LAST_QUERIES = 32
"""Tokens at the end of a prompt that ask where no question is known."""
DEPTH = 0.6
"""Share of the attention layers before the second of the two that find most, untrained and unmeasured."""


@register_scorer("calibrated")
@dataclass(frozen=True)
class CalibratedScorer(ReadingScorer):
    """Attention from the question's tokens in the layers and heads that retrieve; the drafter stops behind them.

    Which they are, and whether their queries and keys are rotated, a calibration of the drafter's file says, see
    `Retrieval`; without one it is `rule_of_thumb`. A token counts as much as the query and the head that looks at it
    hardest. Tokens behind the question have no part in it. Where a prompt names no question its last 32 tokens ask.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Whether a file that has no calibration gets one when it is first used.

    Notes
    -----
    Un-rotated scores of one middle layer find facts that the maximum over all heads misses: see
    ``docs/results/real.md``. Retrieval heads: Wu et al. (arXiv 2404.15574).
    """

    retrieves: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def reader(self, retrieval: Retrieval) -> TailScorer:
        """How the drafter reads."""
        return TailScorer(
            sparse=self.sparse,
            queries="question",
            rotary=retrieval.rotary,
            order="heads,queries,pool",
            over_heads=retrieval.over_heads,
            over_queries=retrieval.over_queries,
            pool=1,
            layers=retrieval.layers,
        )

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of the layers that are run."""
        return super().flops(first_layers(config, retrieval_of(config).depth), tokens)

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """All that are run."""
        return first_layers(config, retrieval_of(config).depth)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the last layer that counts."""
        return retrieval_of(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once over the prompt and reduce what its chosen heads see."""
        model, asking = request.model, up_to_question(request)
        retrieval = retrieval_of(model.config)
        reader = self.reader(retrieval)
        fold = Fold(reader.reduction(), request.by_head)
        whole = all(len(heads) == model.config.heads for _, heads in retrieval.heads)
        chosen = {layer: _mask(heads, model.config.heads) for layer, heads in retrieval.heads}

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            if whole:
                fold.add_layer(q, keys, causal=True)
                return
            weights = attention_rows(q, keys)
            weights *= array_module(weights).asarray(chosen[layer])[:, None, None]
            fold.add(weights)

        like = (fold.reduction, fold.by_head) if whole and in_kernel(fold.reduction) else None
        return padded(importance_of(fold, reader.read(asking, take, like)), len(request.ids))


def retrieval_of(config: ModelConfig) -> Retrieval:
    """What is known of a model, or else the rule."""
    return config.retrieval or rule_of_thumb(config)


def rule_of_thumb(config: ModelConfig) -> Retrieval:
    """All heads, un-rotated, of the two attention layers around 60 % of the depth."""
    layers = config.attention_layers
    if not layers:
        raise ConfigError("scorer calibrated reads attention, and no layer of the drafter has any; take another scorer")
    last = min(max(round(DEPTH * len(layers)) + 1, 2), len(layers))
    heads = tuple(range(config.heads))
    return Retrieval(tuple((layer, heads) for layer in layers[max(last - 2, 0) : last]), "none", measured=False)


def up_to_question(request: ScoreRequest) -> ScoreRequest:
    """The request up to the last token of its question; where it names none, its last tokens are taken for it."""
    n = len(request.ids)
    end = n if request.asked is None else min(request.asked, n)
    question = request.question
    if question.any():
        end = int(np.flatnonzero(question)[-1]) + 1
    else:
        question = (np.arange(n) >= end - LAST_QUERIES) & (np.arange(n) < end)
    return replace(
        request,
        ids=request.ids[:end],
        positions=request.positions[:end],
        question=question[:end],
        needle=request.needle[:end],
        spans=None if request.spans is None else request.spans[:end],
        protected=None if request.protected is None else request.protected[:end],
    )


def _mask(heads: tuple[int, ...], count: int) -> Floats:
    """One for each of the heads, of so many."""
    mask = np.zeros(count, np.float32)
    mask[list(heads)] = 1
    return mask
