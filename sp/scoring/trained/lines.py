"""Score whole lines, for code and records: the probe's features pooled over lines and those beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sp.arrays import Ints
from sp.errors import ConfigError
from sp.scoring.base import ScoreRequest, register_scorer
from sp.scoring.trained.probe import ProbeLearning, ProbeScorer
from sp.scoring.trained.units import line_units


@dataclass(frozen=True)
class LineLearning(ProbeLearning):
    """How a line head learns; of `ProbeLearning`, a line takes the place of a chunk.

    `neighbours`: lines on either side whose attention a line is judged by as well.
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
