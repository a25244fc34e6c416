"""What is told of acceptance: tokens a pass and its interval."""

from __future__ import annotations

import numpy as np


def interval(tokens: list[int], passes: list[int], seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap 95 % interval, over prompts, of all tokens divided by all passes."""
    t, p = np.array(tokens), np.array(passes)
    at = np.random.default_rng(seed).integers(len(t), size=(draws, len(t)))
    low, high = np.quantile(t[at].sum(1) / p[at].sum(1), (0.025, 0.975))
    return round(float(low), 3), round(float(high), 3)
