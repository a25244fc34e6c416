"""The default scorer: what finds most with the drafter's file, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sp.models import ModelConfig
from sp.scoring.attention.calibrated import CalibratedScorer
from sp.scoring.base import SCORERS, Importance, Scorer, ScoreRequest, register_scorer
from sp.scoring.reading import DRAFTING, ReadingScorer


@register_scorer("auto")
@dataclass(frozen=True)
class AutoScorer(ReadingScorer):
    """The scorer that the calibration of the drafter's file names; `calibrated` where there is none.

    That is a trained head where one ships for the file, and attention of the layers that retrieve for others. The
    report says which scorer it was.

    Parameters
    ----------
    attention, alpha, density, blocks
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Whether a file that has no calibration gets one when it is first used.
    """

    retrieves: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def chosen(self, config: ModelConfig) -> Scorer:
        """The scorer for a model, with these options of reading."""
        name = config.retrieval.scorer if config.retrieval else SCORERS.name_of(CalibratedScorer())
        return SCORERS.build(name, {option: getattr(self, option) for option in DRAFTING[1:]})

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Those of the scorer."""
        return self.chosen(config).flops(config, tokens)

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Those of the scorer."""
        return self.chosen(config).kept_layers(config)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """That of the scorer."""
        return self.chosen(config).reading_depth(config)

    def score(self, request: ScoreRequest) -> Importance:
        """What the scorer says."""
        return self.chosen(request.model.config).score(request)
