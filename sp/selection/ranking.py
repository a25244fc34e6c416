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
    turns, spread = _turns(len(chosen), backbone)
    when = turns[~spread][: len(chosen)]
    radius = min(radius, units - 1)
    steps = _with_neighbours(chosen, when, units, radius)
    if backbone and len(chosen):
        even = spread_order(units)
        early = turns[spread & (turns < when[-1])][: len(even)]
        even = even[: len(early)]
        steps[even] = np.minimum(steps[even], early * (2 * radius + 1))
    return steps


def own_steps(count: int, units: int, radius: int, backbone: float) -> Doubles:
    """Step at which each of `count` chosen units is taken for its own sake; arguments as for `unit_steps`.

    Examples
    --------
    >>> own_steps(3, 9, 1, 0.5).tolist()
    [0.0, 6.0, 12.0]
    """
    turns, spread = _turns(count, backbone)
    return np.asarray(turns[~spread][:count] * (2 * min(radius, units - 1) + 1), np.float64)


def _turns(count: int, backbone: float) -> tuple[Ints, Bools]:
    """Turns that suffice for so many choices, and which of them belong to the backbone."""
    turns = np.arange(int(count / (1 - backbone)) + 2)
    return turns, np.floor((turns + 1) * backbone) > np.floor(turns * backbone)


def _with_neighbours(chosen: Ints, when: Ints, units: int, radius: int) -> Doubles:
    """Steps of units chosen at the turns `when`, ascending, and of their neighbours.

    A turn is as many steps long as there are neighbours, so the earliest choice in reach decides, and how far it lies.
    """
    never = int(when[-1]) + 1 if len(when) else 0
    turn = np.full(units + 2 * radius, never)
    turn[radius + chosen] = when
    earliest = sliding_least(turn, 2 * radius + 1)
    unit_of = np.zeros(never + 1, np.int64)
    unit_of[when] = chosen
    away = np.arange(units) - unit_of[earliest]
    # The "+distance" neighbour, behind the choice, comes one step before the "-distance" one.
    steps: Doubles = (earliest * (2 * radius + 1) + 2 * np.abs(away) - (away > 0)).astype(np.float64)
    steps[earliest == never] = np.inf
    return steps


def sliding_least(values: Ints, width: int) -> Ints:
    """Least of every `width` consecutive values; shape (n - width + 1,). Windows are made of two halves that overlap.

    Examples
    --------
    >>> sliding_least(np.array([3, 1, 4, 1, 5, 9]), 3).tolist()
    [1, 1, 1, 1]
    """
    span = 1
    while 2 * span <= width:
        values = np.minimum(values[:-span], values[span:])
        span *= 2
    rest = width - span
    return np.minimum(values[: len(values) - rest], values[rest:])


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
    return _least_over(starts, wide, steps, n)


def _least_over(starts: Ints, lengths: Ints, values: Doubles, n: int) -> Doubles:
    """Least value of all ranges that hold a place, shape (n,).

    A range is two overlapping ones of a power of two; a table of those is then halved, level by level.
    """
    levels = np.frexp(lengths)[1] - 1
    least = np.full(n, np.inf)
    for level in range(int(levels.max()), -1, -1):
        if level < levels.max():
            half = 1 << level
            wider = least
            least = wider.copy()
            least[half:] = np.minimum(least[half:], wider[:-half])
        mine = levels == level
        first, last = starts[mine], starts[mine] + lengths[mine] - (1 << level)
        np.minimum.at(least, first, values[mine])
        np.minimum.at(least, last, values[mine])
    return least


def fill(forced: Bools, first: Doubles, budget: int, characters: Ints | None = None) -> Bools:
    """Forced tokens, then whole steps in order until one no longer fits.

    Tokens that hold parts of a character are taken together, at the earliest of their steps.

    Parameters
    ----------
    forced : boolean array (n,)
    first : array (n,)
        Step of each token; infinite ones are never taken.
    budget : int
        Tokens that may be kept, forced ones among them.
    characters : array (n,), optional
        As in `SelectionRequest`; the forced tokens hold whole ones.

    Examples
    --------
    >>> fill(np.array([True, False, False, False]), np.array([0.0, 0.0, 1.0, 1.0]), 3).tolist()
    [True, True, False, False]
    """
    first = together(first, characters)
    wanted = first[~forced & np.isfinite(first)]
    room = budget - int(forced.sum())
    if len(wanted) <= room:
        return forced | np.isfinite(first)
    # The step of the first token without room is the first that does not fit as a whole.
    kept: Bools = forced | (first < np.partition(wanted, room)[room])
    return kept


def together(steps: Doubles, characters: Ints | None) -> Doubles:
    """The least step of the tokens that hold parts of the same characters, (n,).

    Examples
    --------
    >>> together(np.array([3.0, 2.0, 1.0]), np.array([0, 1, 1])).tolist()
    [3.0, 1.0, 1.0]
    """
    if characters is None:
        return steps
    least = np.full(len(steps), np.inf)
    np.minimum.at(least, characters, steps)
    return np.asarray(least[characters], np.float64)
