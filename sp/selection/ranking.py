"""From units in order of choice to the tokens kept: neighbours, backbone, shortest run, and the budget.

Every unit gets a *step*, the moment at which it is taken; neither the steps nor what is taken in a step depend on
the budget, which only says after how many steps to stop. So a larger budget keeps all that a smaller one keeps.
"""

from __future__ import annotations

import numpy as np

from sp.arrays import Bools, Doubles, Ints


def spread_order(units: int) -> Ints:
    """All units, so that any first few of them lie evenly: numbers with their bits reversed (van der Corput).

    Examples
    --------
    >>> spread_order(8).tolist()
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(units - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    order = np.zeros_like(numbers)
    for bit in range(bits):
        order |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return order[order < units]


def unit_steps(chosen: Ints, units: int, radius: int, backbone: float) -> Doubles:
    """Step at which each unit is taken; infinite for units that never are.

    Parameters
    ----------
    chosen : array
        Units a rule chose, best first.
    units : int
        Units in all.
    radius : int
        Neighbours taken right after a chosen unit: +1, -1, +2, -2, ...
    backbone : float
        Share of the choices that follow `spread_order` instead of the rule, in [0, 1).

    Examples
    --------
    >>> unit_steps(np.array([2, 0]), 4, 1, 0.0).tolist()
    [3.0, 2.0, 0.0, 1.0]
    """
    turns = np.arange(int(len(chosen) / (1 - backbone)) + 2)
    spread = np.floor((turns + 1) * backbone) > np.floor(turns * backbone)
    ranks = np.full(units, np.inf)
    ranks[chosen] = turns[~spread][: len(chosen)]
    radius = min(radius, units - 1)
    stride = 2 * radius + 1
    steps = ranks * stride
    for distance in range(1, radius + 1):
        # The later unit of a pair is the "+distance" neighbour of the earlier one, and the earlier its "-distance".
        after, before = ranks[:-distance] * stride + 2 * distance - 1, ranks[distance:] * stride + 2 * distance
        steps[distance:] = np.minimum(steps[distance:], after)
        steps[:-distance] = np.minimum(steps[:-distance], before)
    if backbone and len(chosen):
        even = spread_order(units)
        when = turns[spread & (turns < turns[~spread][len(chosen) - 1])][: len(even)]
        even = even[: len(when)]
        steps[even] = np.minimum(steps[even], when * stride)
    return steps


def token_steps(steps: Doubles, bounds: Ints, min_run: int) -> Doubles:
    """Step at which each token is taken, when units shorter than `min_run` are widened on both sides.

    Examples
    --------
    >>> token_steps(np.array([np.inf, 0.0, np.inf]), np.array([0, 2, 3, 6]), 3).tolist()
    [inf, 0.0, 0.0, 0.0, inf, inf]
    """
    n, lengths = int(bounds[-1]), np.diff(bounds)
    if lengths.min() >= min(min_run, n):
        return np.repeat(steps, lengths)
    wide = np.minimum(np.maximum(lengths, min_run), n)
    starts = np.clip(bounds[:-1] - (wide - lengths) // 2, 0, n - wide)
    first = np.full(n, np.inf)
    for unit in np.argsort(-steps, kind="stable"):  # the earliest step is written last, over all others
        first[starts[unit] : starts[unit] + wide[unit]] = steps[unit]
    return first


def fill(forced: Bools, first: Doubles, budget: int) -> Bools:
    """Forced tokens, then whole steps in order until one no longer fits.

    Parameters
    ----------
    forced : boolean array (n,)
    first : array (n,)
        Step of each token; infinite ones are never taken.
    budget : int
        Tokens that may be kept, forced ones among them.

    Examples
    --------
    >>> fill(np.array([True, False, False, False]), np.array([0.0, 0.0, 1.0, 1.0]), 3).tolist()
    [True, True, False, False]
    """
    wanted = first[~forced & np.isfinite(first)]
    steps, new = np.unique(wanted, return_counts=True)
    taken = int(np.searchsorted(np.cumsum(new), budget - int(forced.sum()), side="right"))
    return forced | (first <= steps[taken - 1]) if taken else forced.copy()
