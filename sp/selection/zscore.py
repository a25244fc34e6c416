"""Keep the chunks that stand out from the rest by so many deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.errors import ConfigError
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.thresholds import ChunkThreshold

NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, for a normal distribution."""


@register_selector("zscore")
@dataclass(frozen=True)
class ZScore(ChunkThreshold):
    """Chunks with a score above centre + z * spread.

    Parameters
    ----------
    z : float
    spread : {"std", "mad"}
        Mean and standard deviation, or median and median absolute deviation (scaled to agree with the former on
        a normal distribution), which a few very important chunks do not move.
    """

    z: float = 2.0
    spread: Literal["std", "mad"] = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.z):
            raise ConfigError(f"z must be a finite number, not {self.z:g}")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks that stand out, best first."""
        bounds, scores, order, falling = self.compare(request)
        if len(order):
            if self.spread == "std":
                centre, spread = float(falling.mean()), float(falling.std())
            else:
                centre = float(np.median(falling))
                spread = NORMAL * float(np.median(np.abs(falling - centre)))
            order = order[falling > centre + self.z * spread]
        return self.take(request, bounds, scores, order)
