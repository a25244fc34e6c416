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
from sp.scoring.trained.base import LabelledUnits, Progress, TrainedScorer, fit_choice, spread_over, unit_shares

MOST_NEIGHBOURS = 4


@dataclass(frozen=True)
class ProbeLearning:
    """Training options of a probe."""

    chunk_size: int = 8  # tokens of a chunk, the unit of the prediction
    neighbours: int = 1  # chunks on either side whose features are used too
    queries: int = 8  # last tokens that are queries, besides the question's
    rotary: Rotations = "both"  # features with rotary embedding, without, or both
    l2: float = 1e-3  # weight of the L2 penalty in the loss

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
    """Probability that a chunk has the evidence, by a logistic model of the attention of every head on it.

    Features are those of `attention_features`, the fit is `fit_choice`.

    Notes
    -----
    Sentinel (arXiv 2505.23277), which uses the last token's attention and sentences.
    """

    learning: ClassVar[type[Any]] = ProbeLearning

    def prefix_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Return the layers up to the last one with attention."""
        return TailScorer().prefix_layers(config)

    def units(self, request: ScoreRequest, options: Any) -> Ints:
        """Return the bounds of the units."""
        return chunk_bounds(len(request.ids), options.chunk_size)

    def features(self, request: ScoreRequest, options: Any) -> tuple[Floats, Ints, Asking, LayerAttention]:
        """Return features (units, f) without neighbours', bounds (units + 1,), query tokens and the attention."""
        bounds, asking = self.units(request, options), Asking.of(request, options.queries)
        scorer = TailScorer(sparse=self.sparse, queries=asking.rows)
        features, attend = attention_features(request, scorer, asking, bounds, options.rotary)
        return features, bounds, asking, attend

    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> LabelledUnits | None:
        """Return the features and the target shares of a prompt, on the model's device."""
        features, bounds, asking, _ = self.features(request, options)
        shares = unit_shares(labels, bounds, asking)
        if shares is None:
            return None
        neighbourhoods = with_neighbours(features, options.neighbours)[: len(shares)]
        return LabelledUnits(neighbourhoods, array_module(features).asarray(shares))

    def fit(self, samples: Sequence[LabelledUnits], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """Fit the weights with `fit_choice`, which needs no random numbers."""
        weights = fit_choice(samples, options.l2)
        progress(self.rounds(options))
        return {"weight": weights.astype("float32")}

    def rounds(self, options: Any) -> int:
        """Return 1: `fit` reports only its end."""
        return 1

    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Return one weight for each feature."""
        return {"weight": (feature_count(model.config, options.rotary, options.neighbours),)}

    def score_with(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        """Return the probabilities of chunks, by a softmax over the document's."""
        features, bounds, asking, attend = self.features(request, options)
        weight = array_module(features).asarray(weights["weight"])
        logits = weigh_neighbours(features, weight, options.neighbours)
        return Importance(spread_over(logits, bounds, asking), densities=densities(attend))


@dataclass(frozen=True)
class LineLearning(ProbeLearning):
    """Training options of a probe over lines: those of `ProbeLearning`, with lines in place of chunks."""

    chunk_size: int = 64  # longest line in tokens; longer ones are cut into parts

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 2:
            raise ConfigError("chunk_size of lines must be at least 2, not 1")


@register_scorer("lines")
@dataclass(frozen=True)
class LinesScorer(ProbeScorer):
    """Probability that a line has the evidence; its tokens have equal scores, so that `sentence` selects it whole.

    Notes
    -----
    Modelled on SWE-Pruner (arXiv 2601.16746), which selects lines by a head with a conditional random field; here the
    features of neighbouring lines replace the field.
    """

    learning: ClassVar[type[Any]] = LineLearning

    def units(self, request: ScoreRequest, options: Any) -> Ints:
        """Return the bounds of lines."""
        return line_units(request, options.chunk_size)
