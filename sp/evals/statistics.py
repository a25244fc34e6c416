"""Intervals for shares and for differences of pairs.

SciPy is imported where it resamples and nowhere else: `scipy.stats` takes as long as a small run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from sp.errors import ConfigError

RESAMPLES = 2000


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share (Wilson 1927), which holds near 0 and 1 and for small n.

    Raises
    ------
    ConfigError
        If `n` is 0.

    Examples
    --------
    >>> [round(bound, 4) for bound in wilson(100, 100)]
    [0.963, 1.0]
    """
    if n < 1:
        raise ConfigError("an interval needs at least one example")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle, half = successes + z**2 / 2, z * sqrt(successes * (n - successes) / n + z**2 / 4)
    low, high = ((middle + sign * half) / (n + z**2) for sign in (-1, 1))
    return (low if successes else 0.0), (high if successes < n else 1.0)


def paired_difference(
    scores: Sequence[float], baseline: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Mean difference of scores of the same examples, and its bootstrap interval (percentiles of resampled pairs).

    Where all pairs differ by the same amount, resampling cannot tell anything and the interval is that one point;
    the Wilson interval of the share says how much n examples can prove.

    `scores`, `baseline`: of the same examples, in the same order.

    Returns
    -------
    tuple of float
        Mean, low, high.

    Examples
    --------
    >>> paired_difference([1.0, 0.0, 1.0], [1.0, 0.0, 1.0])
    (0.0, 0.0, 0.0)
    """
    if len(scores) != len(baseline) or not len(scores):
        raise ConfigError(f"{len(scores)} scores cannot be paired with {len(baseline)}")
    differences = np.subtract(scores, baseline, dtype=np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return mean, mean, mean
    from scipy import stats

    found = stats.bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, confidence_level=confidence, method="percentile",
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    return mean, float(found.confidence_interval.low), float(found.confidence_interval.high)
