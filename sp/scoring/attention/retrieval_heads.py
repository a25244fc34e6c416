"""Score by the few heads that are known to retrieve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.array_module import array_module
from sp.ops.attention.attention_rows import attention_rows
from sp.ops.attention.paged_kv import PagedKV
from sp.scoring.attention.attention import AttentionScorer, Fold, importance_of
from sp.scoring.attention.head_map import EMBEDDED_MAP, HeadMap
from sp.scoring.base import Importance, ScoreRequest, register_scorer


@register_scorer("retrieval_heads")
@dataclass(frozen=True)
class RetrievalHeadsScorer(AttentionScorer):
    """`tail` over the heads of a map whose retrieval score is above a threshold; all others count for nothing.

    Parameters
    ----------
    map : str
        File that ``sp heads`` made of this drafter; left empty, the map of the embedded one.
    threshold : float
        Heads at or below it are left out.

    Notes
    -----
    Retrieval heads: Wu et al. (arXiv 2404.15574), with the threshold of that paper.
    """

    over_heads: Literal["max", "mean"] = "mean"
    map: str = ""
    threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold < 1:
            raise ConfigError(f"threshold must be at least 0 and below 1, not {self.threshold}")

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the chosen heads' attention."""
        found = HeadMap.load(Path(self.map) if self.map else EMBEDDED_MAP)
        chosen = found.chosen(request.model, self.threshold)
        if not set(chosen) & set(self.scored_layers(request.model.config)):
            raise ConfigError(f"no retrieval head is in a layer that counts; they are in {sorted(chosen)}")
        fold = Fold(self.reduction(), request.by_head)

        def take(layer: int, q: Floats, keys: PagedKV) -> None:
            if layer in chosen:
                weights = attention_rows(q, keys)
                weights *= array_module(weights).asarray(chosen[layer])[:, None, None]
                fold.add(weights)

        return importance_of(fold, self.read(request, take))
