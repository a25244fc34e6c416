"""The default scorer: what finds most with the drafter's file, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sp.errors import ConfigError
from sp.models import ModelConfig
from sp.scoring.base import SCORERS, Importance, ReadingScorer, Scorer, ScoreRequest, register_scorer
from sp.values import shown

CALIBRATED = "calibrated"
"""What is taken where nothing is known of a file."""


@register_scorer("auto")
@dataclass(frozen=True)
class AutoScorer(ReadingScorer):
    """The scorer that the calibration of the drafter's file names; `calibrated` where there is none.

    That is a trained head where one ships for the file, and attention of the layers that retrieve for others. The
    report says which scorer it was.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Whether a file that has no calibration gets one when it is first used.
    """

    retrieves: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def chosen(self, config: ModelConfig) -> Scorer:
        """The scorer for a model, with these options of reading.

        Raises
        ------
        ConfigError
            The calibration names none that reads with a drafter.
        """
        name = config.retrieval.scorer if config.retrieval else CALIBRATED
        kind = SCORERS.class_of(name) if name in SCORERS else None
        if kind is None or not issubclass(kind, ReadingScorer) or kind.reads_target or kind is AutoScorer:
            raise ConfigError(
                f"the calibration of the drafter's file names scorer {shown(name)}, which is none that reads with a "
                "drafter; make it anew with sp calibrate, or name one with --scorer"
            )
        return SCORERS.build(name, {"sparse": self.sparse})

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
