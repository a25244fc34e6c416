"""Linear probes on attention features, of chunks and of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sp.arrays import Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import LayerAttention, Model, ModelConfig
from sp.ops.array_module import array_module
from sp.prompt.spans import chunk_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, TailScorer
from sp.scoring.base import Importance, ScoreRequest, densities, register_scorer
from sp.scoring.trained.attention_features import (
    Asking,
    Rotations,
    attention_features,
    feature_count,
    line_units,
    weigh_neighbours,
    with_neighbours,
)
from sp.scoring.trained.base import Choice, Progress, TrainedScorer, fit_choice, spread_over, unit_shares

MOST_NEIGHBOURS = 4


@dataclass(frozen=True)
class ProbeLearning:
    """How a probe learns."""

    chunk_size: int = 8  # tokens that are judged as one
    neighbours: int = 1  # chunks on either side whose attention a chunk is judged by as well
    queries: int = 8  # last tokens that ask, besides the question's
    rotary: Rotations = "both"  # judge by attention as the drafter has it, by that without rotary embedding, or by both
    l2: float = 1e-3  # weight of the squares of the weights in the loss

    def __post_init__(self) -> None:
        check_fields(self, "options")
        limits = {"chunk_size": 4096, "queries": MOST_QUESTION_TOKENS, "neighbours": MOST_NEIGHBOURS}
        for name, most in limits.items():
            least = int(name != "neighbours")
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        if not 1e-9 <= self.l2 <= 1e9:
            raise ConfigError(f"l2 must be from 1e-9 to 1e9, not {self.l2:g}")


@register_scorer("probe")
@dataclass(frozen=True)
class ProbeScorer(TrainedScorer):
    """Likelihood that a chunk holds the evidence, from how much every head looks at it: logistic, trained.

    Features are those of `attention_features`, the fit is `fit_choice`.

    Notes
    -----
    Sentinel (arXiv 2505.23277), there with the last token's attention, sentence by sentence.
    """

    learning: ClassVar[type[Any]] = ProbeLearning

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """All with attention, and those before them."""
        return TailScorer().kept_layers(config)

    def units(self, request: ScoreRequest, options: Any) -> Ints:
        """Bounds of what is judged as one."""
        return chunk_bounds(len(request.ids), options.chunk_size)

    def features(self, request: ScoreRequest, options: Any) -> tuple[Floats, Ints, Asking, LayerAttention]:
        """Features (units, f) without neighbours', bounds (units + 1,), who asks, and what attended."""
        bounds, asking = self.units(request, options), Asking.of(request, options.queries)
        reader = TailScorer(sparse=self.sparse, queries=asking.rows)
        features, attend = attention_features(request, reader, asking, bounds, options.rotary)
        return features, bounds, asking, attend

    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> Choice | None:
        """See `TrainedScorer`; features stay where the model is."""
        features, bounds, asking, _ = self.features(request, options)
        shares = unit_shares(labels, bounds, asking)
        if shares is None:
            return None
        beside = with_neighbours(features, options.neighbours)[: len(shares)]
        return Choice(beside, array_module(features).asarray(shares))

    def fit(self, samples: Sequence[Choice], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """See `fit_choice`, which draws nothing."""
        found = fit_choice(samples, options.l2)
        progress(self.rounds(options))
        return {"weight": found.astype("float32")}

    def rounds(self, options: Any) -> int:
        """One."""
        return 1

    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """One weight a feature."""
        return {"weight": (feature_count(model.config, options.rotary, options.neighbours),)}

    def weigh(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        features, bounds, asking, attend = self.features(request, options)
        weight = array_module(features).asarray(weights["weight"])
        logits = weigh_neighbours(features, weight, options.neighbours)
        return Importance(spread_over(logits, bounds, asking), densities=densities(attend))


@dataclass(frozen=True)
class LineLearning(ProbeLearning):
    """How a line head learns; of `ProbeLearning`, a line takes the place of a chunk. `neighbours`: lines on either side
    whose attention a line is judged by as well.
    """

    chunk_size: int = 64  # longer lines are cut into parts of so many tokens or fewer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 2:
            raise ConfigError("chunk_size of lines must be at least 2, not 1")


@register_scorer("lines")
@dataclass(frozen=True)
class LinesScorer(ProbeScorer):
    """Likelihood that a line holds the evidence; all its tokens score alike, so that `sentence` keeps it whole.

    Notes
    -----
    After SWE-Pruner (arXiv 2601.16746), which keeps or drops lines by a head with a conditional random field; here the
    lines beside a line stand for that.
    """

    learning: ClassVar[type[Any]] = LineLearning

    def units(self, request: ScoreRequest, options: Any) -> Ints:
        """Bounds of lines."""
        return line_units(request, options.chunk_size)
