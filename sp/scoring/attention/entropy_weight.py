"""Score by attention in which heads count the more the fewer tokens they look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.array_module import array_module
from sp.scoring.attention.reweighted import ReweightedScorer
from sp.scoring.base import register_scorer


@register_scorer("entropy_weight")
@dataclass(frozen=True)
class EntropyWeightScorer(ReweightedScorer):
    """`tail` with each head's weights times ``1 - H / log n`` of their entropy H, averaged over the heads.

    Parameters
    ----------
    beta : float, optional
        Weigh by ``exp(-beta H)`` instead.
    """

    over_heads: Literal["max", "mean"] = "mean"
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None and not 0 <= self.beta < np.inf:
            raise ConfigError(f"beta must be a number from 0 on, not {self.beta}")

    def reweighted(self, weights: Floats, layer: int) -> Floats:
        """See the class."""
        xp, tokens = array_module(weights), weights.shape[-1]
        for head in weights:  # one at a time: the logarithm is a copy
            entropy = -(head * xp.log(xp.maximum(head, np.float32(1e-30)))).sum(axis=-1, keepdims=True)
            head *= xp.exp(-self.beta * entropy) if self.beta is not None else 1 - entropy / max(np.log(tokens), 1e-6)
        return weights
