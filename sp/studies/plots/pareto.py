"""Quality against cost: accuracy over kept tokens and over time to first token, a panel for each prompt length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sp.studies.figures import INK
from sp.studies.plots.forest_plot import sizes_told
from sp.studies.style import Look, apart, looks, plain_log, tidy, tokens_label
from sp.studies.sweep.cells import FULL, Group, Table

STAGES = {
    "tokenise": ("tokenise_s",),
    "score": ("score_s",),
    "select": ("select_s", "compress_s"),
    "target prefill": ("prefill_s",),
}
COLOURS = ("#868e96", "#1c7ed6", "#2f9e44", "#f08c00", "#dee2e6")


def stage_figure(table: Table, tokens: int, keep: float) -> Figure:
    """Medians of each stage's seconds at one length and keep ratio; `other` is what the stages leave of the total."""
    groups = table.groups("tokens_asked", keep=[keep])
    mine = {key[0]: group for key, group in groups.items() if key[1] == tokens}
    names = list(mine)
    figure = Figure(figsize=(7.5, 0.32 * len(names) + 1.3), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(names))
    totals = np.array([mine[name].median("ttft_s") or 0.0 for name in names])
    parts = {
        label: np.array([sum(mine[name].median(column) or 0.0 for column in columns) for name in names])
        for label, columns in STAGES.items()
    }
    parts["other"] = np.maximum(totals - np.sum(list(parts.values()), axis=0), 0)
    for (label, seconds), colour in zip(parts.items(), COLOURS, strict=True):
        axes.barh(names, seconds, left=left, color=colour, height=0.7, label=label)
        left += seconds
    for row, (end, total) in enumerate(zip(left, totals, strict=True)):
        axes.text(end, row, f" {total:.3g} s", va="center", fontsize=8, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("seconds until the first token (medians)", fontsize=9)
    axes.set_xlim(0, 1.13 * left.max())
    axes.set_title(f"{tokens_label(tokens)} tokens, keep ratio {keep:g}", fontsize=10, loc="left")
    tidy(axes)
    axes.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


Cost = Literal["kept_tokens", "ttft_s"]
LABELS = {"kept_tokens": "kept tokens (mean; drawn a little apart)", "ttft_s": "time to first token (s, median)"}


def pareto_figure(table: Table, cost: Cost) -> Figure:
    """One line a strategy, one point a keep ratio, pooled over tasks; bars are Wilson 95 % intervals.

    The full prefill is the star, and the band its interval.
    """
    lengths = table.values("tokens_asked")
    names = table.strategies()
    others = [name for name in names if not name.startswith(FULL)]
    styles = looks(names)
    columns = min(3, len(lengths))
    rows = -(-len(lengths) // columns)
    height = max(2.9 * rows + 0.3, 0.19 * len(names) + 0.4)  # the legend has a line a strategy
    figure = Figure(figsize=(3.1 * columns + 2.3, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    groups = table.groups("tokens_asked", "keep_ratio")
    for axes, tokens in zip(grid.flat, lengths, strict=False):
        for name in names:
            mine = {key[2]: group for key, group in groups.items() if key[0] == name and key[1] == tokens}
            if mine:
                full = name.startswith(FULL)
                aside = 1.0 if full or cost != "kept_tokens" else apart(others.index(name), len(others))
                _line(axes, [mine[keep] for keep in sorted(mine)], styles[name], cost, aside, full=full)
        sizes = [group.n for key, group in groups.items() if key[1] == tokens]
        axes.set_title(f"{tokens_label(tokens)} tokens, {sizes_told(sizes)}", fontsize=9)
        axes.set_ylim(-3, 103)
        tidy(axes)
        low, high = axes.get_xlim()
        plain_log(axes, _ticks(max(low, 1e-6), high), tokens=cost == "kept_tokens")
    for axes in grid.flat[len(lengths) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("right answers (%)", fontsize=9)
    for column in range(columns):
        last = max(row for row in range(rows) if row * columns + column < len(lengths))
        grid[last, column].set_xlabel(LABELS[cost], fontsize=9)
    handles = [
        grid[0, 0].plot([], [], color=look.colour, marker=look.marker, linestyle=look.line, markersize=5, label=name)[0]
        for name, look in styles.items()
    ]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _line(axes: Axes, groups: Sequence[Group], look: Look, cost: Cost, aside: float, *, full: bool) -> None:
    found = [group.mean(cost) if cost == "kept_tokens" else group.median(cost) for group in groups]
    x = aside * np.array([value or np.nan for value in found])
    y = 100 * np.array([group.accuracy for group in groups])
    bounds = 100 * np.array([group.interval for group in groups])
    if full:
        axes.axhspan(*bounds[0], color=look.colour, alpha=0.08, linewidth=0)
        axes.plot(x, y, look.marker, color=look.colour, markersize=11, zorder=5)
        return
    axes.errorbar(
        x, y, yerr=np.abs(bounds.T - y), color=look.colour, linestyle="", elinewidth=0.8, alpha=0.45, zorder=2
    )
    axes.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker, markersize=4, linewidth=1.2, zorder=3)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers 1, 2, 5 times powers of ten, at most about seven of them."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return ticks if len(ticks) <= 7 else [tick for tick in ticks if f"{tick:e}".startswith("1")]
