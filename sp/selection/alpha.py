"""Keep the chunks that reach a share of the best chunk, or a multiple of the average one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.errors import ConfigError
from sp.selection.base import Selection, SelectionRequest, register_selector
from sp.selection.thresholds import ChunkThreshold


@register_selector("alpha")
@dataclass(frozen=True)
class Alpha(ChunkThreshold):
    """Chunks with a score above `alpha` times the maximum, or times the mean, of all chunks.

    The test FlashPrefill (arXiv 2603.06199) applies to blocks of attention, here applied to the text.

    Parameters
    ----------
    alpha : float
        Positive; below 1 with the maximum, which nothing exceeds.
    of : {"max", "mean"}
    """

    alpha: float = 0.1
    of: Literal["max", "mean"] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < float("inf") or (self.of == "max" and self.alpha >= 1):
            bound = "above 0 and below 1 with of=max" if self.of == "max" else "a positive number"
            raise ConfigError(f"alpha must be {bound}, not {self.alpha:g}")

    def select(self, request: SelectionRequest) -> Selection:
        """Chunks that pass, best first."""
        bounds, scores, order, falling = self.compare(request)
        if len(order):
            order = order[falling > self.alpha * (falling[0] if self.of == "max" else falling.mean())]
        return self.take(request, bounds, scores, order)
