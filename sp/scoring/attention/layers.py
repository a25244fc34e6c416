"""Variants of scorer `tail`: other queries, other layers, another scoring model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sp.scoring.attention.attention import LayerSet, Rotary, TailScorer
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.lexical import Anchors


@register_scorer("anchored")
@dataclass(frozen=True)
class AnchoredScorer(TailScorer):
    """`tail`, where chunks that `lexical` marks rank above all others, ordered by its marks and then by attention.

    To measure the benefit of anchors, compare with `tail` and with `lexical` at equal numbers of selected tokens.

    Parameters
    ----------
    ngram, most_hits, radius, asked, chunk_size
        See `Anchors`; the defaults are those of the seed project, which uses the last 96 tokens.

    Notes
    -----
    The scoring of Lucebox: the last 8 prompt tokens without rotary embedding, maximum over heads, mean over queries,
    pooling last.
    """

    rotary: Literal["post", "none"] = "none"
    order: str = "heads,queries,pool"
    ngram: int = 4
    most_hits: int = 8
    radius: int | Literal["by_length"] = 2
    asked: int = 96
    chunk_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.anchors()

    def anchors(self) -> Anchors:
        """Return the anchors that these options describe."""
        return Anchors(self.ngram, self.most_hits, self.radius, self.asked, self.chunk_size)

    def score(self, request: ScoreRequest) -> Importance:
        """Scale attention to at most 1, and add 2 plus 1000 times the mark where a chunk is marked."""
        attention, marks = super().score(request), self.anchors().mark(request)
        scores = attention.scores / max(float(attention.scores.max()), 1e-30)
        return replace(attention, scores=(scores + np.where(marks > 0, 2 + 1e3 * marks, 0)).astype(np.float32))


@register_scorer("layer_subset")
@dataclass(frozen=True)
class LayerSubsetScorer(TailScorer):
    """`tail` over the later half of the attention layers, where heads that retrieve are most often found.

    Notes
    -----
    GemFilter (arXiv 2409.17422) and LongAttnComp (arXiv 2606.01336) filter by one layer; this uses any set of layers.
    """

    layers: tuple[int, ...] | LayerSet | None = "last_half"


@register_scorer("mid_layer")
@dataclass(frozen=True)
class MidLayerScorer(TailScorer):
    """`tail` of the middle attention layer alone, its queries and keys un-rotated: relevance without position.

    All tokens from the question on are queries; all heads and queries count equally. Later layers are not run.

    Notes
    -----
    Modelled on the scoring layer of LongAttnComp (arXiv 2606.01336), here untrained.
    """

    queries: int | Literal["question"] = "question"
    rotary: Rotary = "none"
    over_heads: Literal["max", "mean"] = "mean"
    layers: tuple[int, ...] | LayerSet | None = "middle"


@register_scorer("target_attention")
@dataclass(frozen=True)
class TargetAttentionScorer(TailScorer):
    """`tail` with the target as its own drafter.

    It saves no time, because the target reads everything first. Evidence that this scorer loses too is lost by the
    method; evidence that only a drafter loses is lost by the drafter.
    """

    reads_target = True
