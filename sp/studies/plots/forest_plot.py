"""Forest plot: where one keep ratio stands all strategies on one spot, a line each instead."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sp.studies.style import looks, tidy, tokens_label
from sp.studies.sweep.cells import FULL, Group, Table


def forest_figure(table: Table, keep: float) -> Figure:
    """Right answers with Wilson 95 % intervals, a panel a length, pooled over tasks; the band is the full prefill's."""
    lengths, names = table.values("tokens_asked"), table.strategies()
    styles = looks(names)
    columns = min(3, len(lengths))
    rows = -(-len(lengths) // columns)
    figure = Figure(figsize=(2.9 * columns + 1.6, rows * (0.21 * len(names) + 0.75) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    groups = table.groups("tokens_asked", keep=[keep])
    for axes, tokens in zip(grid.flat, lengths, strict=False):
        mine = {key[0]: group for key, group in groups.items() if key[1] == tokens}
        for place, name in enumerate(names):
            if name in mine:
                _line(axes, place, mine[name], styles[name].colour, styles[name].marker, full=name.startswith(FULL))
        sizes = [group.n for group in mine.values()]
        axes.set_title(f"{tokens_label(tokens)} tokens, {sizes_told(sizes)}", fontsize=9)
        axes.set_xlim(-3, 103)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        tidy(axes)
    for axes in grid.flat[len(lengths) :]:
        axes.set_visible(False)
    for column in range(columns):
        last = max(row for row in range(rows) if row * columns + column < len(lengths))
        grid[last, column].set_xlabel("right answers (%)", fontsize=9)
        grid[last, column].tick_params(labelbottom=True)
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    figure.suptitle(f"Keep ratio {keep:g}; bars: Wilson 95 %", fontsize=10)
    return figure


def sizes_told(sizes: list[int]) -> str:
    """How many examples a point rests on.

    Examples
    --------
    >>> sizes_told([20, 20]), sizes_told([1, 20]), sizes_told([1])
    ('n = 20', 'n = 1 to 20', 'n = 1: one example a point')
    """
    if max(sizes) == 1:
        return "n = 1: one example a point"
    return f"n = {min(sizes)}" if min(sizes) == max(sizes) else f"n = {min(sizes)} to {max(sizes)}"


def _line(axes: Axes, place: int, group: Group, colour: str, marker: str, *, full: bool) -> None:
    """One strategy; of one example the point is hollow and has no interval."""
    value, bounds = 100 * group.accuracy, 100 * np.array(group.interval)
    if full:
        axes.axvspan(*bounds, color=colour, alpha=0.08, linewidth=0)
    if group.n > 1:
        axes.plot(bounds, [place, place], color=colour, linewidth=1.6, alpha=0.6, zorder=2)
    face = colour if group.n > 1 else "white"
    axes.plot([value], [place], marker, color=colour, markerfacecolor=face, markersize=9 if full else 5, zorder=3)
