"""Score by attention without what sinks and the last tokens take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.array_module import array_module
from sp.scoring.attention.reweighted import ReweightedScorer
from sp.scoring.base import register_scorer

LEAST_LEFT = 1e-6


@register_scorer("sink_masked")
@dataclass(frozen=True)
class SinkMaskedScorer(ReweightedScorer):
    """`tail` with no weight on the first `sink` and the last `recent` tokens.

    Parameters
    ----------
    sink, recent : int
        Tokens at both ends whose weights are set to zero.
    renormalise : bool
        Let the other weights of a query sum to one again, so that a head which mostly rests on its sink counts as much
        as any other; raised a million times at most, since what is left may be rounding.

    Notes
    -----
    Attention sinks: StreamingLLM (arXiv 2309.17453).
    """

    sink: int = 4
    recent: int = 0
    renormalise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sink", "recent"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        tokens = weights.shape[-1]
        weights[..., : self.sink] = 0
        weights[..., max(0, tokens - self.recent) :] = 0
        if self.renormalise:
            left = weights.sum(axis=-1, keepdims=True)
            weights /= array_module(left).maximum(left, np.float32(LEAST_LEFT))
        return weights
