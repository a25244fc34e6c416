"""Plots of accuracy by keep ratio: forest plots, accuracy over time or kept tokens, stages, and needles by depth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from sp.studies.figures import (
    HATCH,
    INK,
    NEEDLE_COLOURS,
    SMALLEST,
    Look,
    hatch_lower_half,
    looks,
    plain_log,
    series_factor,
    tidy,
    tokens_label,
)
from sp.studies.sweep.cells import FULL, Group, Table
from sp.studies.sweep.store import Row


def forest_figure(table: Table, keep: float) -> Figure:
    """Draw the right answers of every strategy, pooled over tasks, with Wilson 95 % intervals and a panel per length.

    The vertical band is the interval of the full prefill.
    """
    lengths, names = table.values("tokens_asked"), table.strategies()
    styles = looks(names)
    columns = min(3, len(lengths))
    rows = -(-len(lengths) // columns)
    figure = Figure(figsize=(2.9 * columns + 1.6, rows * (0.21 * len(names) + 0.75) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    groups = table.groups("tokens_asked", keep=[keep])
    for axes, tokens in zip(grid.flat, lengths, strict=False):
        by_strategy = {key[0]: group for key, group in groups.items() if key[1] == tokens}
        for place, name in enumerate(names):
            if name in by_strategy:
                _line(
                    axes, place, by_strategy[name], styles[name].colour, styles[name].marker, full=name.startswith(FULL)
                )
        sizes = [group.n for group in by_strategy.values()]
        axes.set_title(f"{tokens_label(tokens)} tokens, {sizes_text(sizes)}", fontsize=9)
        axes.set_xlim(-3, 103)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        tidy(axes)
    _label_lowest(grid, len(lengths), "right answers (%)")
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    figure.suptitle(f"Keep ratio {keep:g}; bars: Wilson 95 %", fontsize=10)
    return figure


def _label_lowest(grid: npt.NDArray[np.object_], panels: int, label: str) -> None:
    """Label the x axis of the lowest panel of every column, and hide the unused places of the grid."""
    rows, columns = grid.shape
    for axes in grid.flat[panels:]:
        axes.set_visible(False)
    for column in range(columns):
        # The last row may be incomplete, so the lowest panel of a column can be in the row above.
        last = max(row for row in range(rows) if row * columns + column < panels)
        grid[last, column].set_xlabel(label, fontsize=9)
        grid[last, column].tick_params(labelbottom=True)


def sizes_text(sizes: list[int]) -> str:
    """Return the number of examples per point as text."""
    if max(sizes) == 1:
        return "n = 1: one example per point"
    return f"n = {min(sizes)}" if min(sizes) == max(sizes) else f"n = {min(sizes)} to {max(sizes)}"


def _line(axes: Axes, place: int, group: Group, colour: str, marker: str, *, full: bool) -> None:
    """Draw one strategy; the point of a single example is hollow and has no interval."""
    value, bounds = 100 * group.accuracy, 100 * np.array(group.interval)
    if full:
        axes.axvspan(*bounds, color=colour, alpha=0.08, linewidth=0)
    if group.n > 1:
        axes.plot(bounds, [place, place], color=colour, linewidth=1.6, alpha=0.6, zorder=2)
    face = colour if group.n > 1 else "white"
    axes.plot([value], [place], marker, color=colour, markerfacecolor=face, markersize=9 if full else 5, zorder=3)


STAGES = {
    "tokenise": ("tokenise_s",),
    "score": ("score_s",),
    "select": ("select_s", "compress_s"),
    "target prefill": ("prefill_s",),
}
COLOURS = ("#868e96", "#1c7ed6", "#2f9e44", "#f08c00", "#dee2e6")
STAGE_HATCHES = ("", "", "///", "", "")  # green is next to orange, so it also has a hatch, for red-green blindness


def stage_figure(table: Table, tokens: int, keep: float) -> Figure:
    """Draw median seconds by stage at one length and keep ratio; `other` is the rest of the total."""
    groups = table.groups("tokens_asked", keep=[keep])
    by_strategy = {key[0]: group for key, group in groups.items() if key[1] == tokens}
    names = list(by_strategy)  # the groups are in the order of `strategy_order`
    figure = Figure(figsize=(7.5, 0.32 * len(names) + 1.3), layout="constrained")
    axes = figure.subplots()
    ends = np.zeros(len(names))
    totals = np.array([by_strategy[name].median("ttft_s") or 0.0 for name in names])
    parts = {
        label: np.array([sum(by_strategy[name].median(column) or 0.0 for column in columns) for name in names])
        for label, columns in STAGES.items()
    }
    # Medians do not add up exactly, so the rest can be slightly negative.
    parts["other"] = np.maximum(totals - np.sum(list(parts.values()), axis=0), 0)
    for (label, seconds), colour, hatch in zip(parts.items(), COLOURS, STAGE_HATCHES, strict=True):
        axes.barh(
            names, seconds, left=ends, facecolor=colour, edgecolor="white", linewidth=0, hatch=hatch, height=0.7,
            label=label,
        )  # fmt: skip
        ends += seconds
    for row, (end, total) in enumerate(zip(ends, totals, strict=True)):
        axes.text(end, row, f" {total:.3g} s", va="center", fontsize=8, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("seconds until the first token (medians)", fontsize=9)
    axes.set_xlim(0, 1.13 * ends.max())  # room for the total after the longest bar
    axes.set_title(f"{tokens_label(tokens)} tokens, keep ratio {keep:g}", fontsize=10, loc="left")
    tidy(axes)
    axes.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


Cost = Literal["kept_tokens", "ttft_s"]
LABELS = {"kept_tokens": "kept tokens (mean; shifted slightly)", "ttft_s": "time to first token (s, median)"}


def pareto_figure(table: Table, cost: Cost) -> Figure:
    """Draw accuracy over cost: a line per strategy, a point per keep ratio, pooled over tasks, a panel per length.

    Bars are Wilson 95 % intervals. The full prefill is the star, and the band its interval.
    """
    lengths = table.values("tokens_asked")
    names = table.strategies()
    others = [name for name in names if not name.startswith(FULL)]
    styles = looks(names)
    columns = min(3, len(lengths))
    rows = -(-len(lengths) // columns)
    height = max(2.9 * rows + 0.3, 0.19 * len(names) + 0.4)  # the legend has a line per strategy
    figure = Figure(figsize=(3.1 * columns + 2.3, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    groups = table.groups("tokens_asked", "keep_ratio")
    for axes, tokens in zip(grid.flat, lengths, strict=False):
        for name in names:
            by_ratio = {key[2]: group for key, group in groups.items() if key[0] == name and key[1] == tokens}
            if by_ratio:
                full = name.startswith(FULL)
                factor = 1.0 if full or cost != "kept_tokens" else series_factor(others.index(name), len(others))
                _curve(axes, [by_ratio[keep] for keep in sorted(by_ratio)], styles[name], cost, factor, full=full)
        sizes = [group.n for key, group in groups.items() if key[1] == tokens]
        axes.set_title(f"{tokens_label(tokens)} tokens, {sizes_text(sizes)}", fontsize=9)
        axes.set_ylim(-3, 103)
        tidy(axes)
        low, high = axes.get_xlim()  # after all curves, whose extent decides the ticks
        plain_log(axes, _ticks(max(low, 1e-6), high), tokens=cost == "kept_tokens")
    _label_lowest(grid, len(lengths), LABELS[cost])
    for axes in grid[:, 0]:
        axes.set_ylabel("right answers (%)", fontsize=9)
    handles = [
        grid[0, 0].plot([], [], color=look.colour, marker=look.marker, linestyle=look.line, markersize=5, label=name)[0]
        for name, look in styles.items()
    ]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _curve(axes: Axes, groups: Sequence[Group], look: Look, cost: Cost, factor: float, *, full: bool) -> None:
    costs = [group.mean(cost) if cost == "kept_tokens" else group.median(cost) for group in groups]
    x = factor * np.array([value or np.nan for value in costs])
    y = 100 * np.array([group.accuracy for group in groups])
    bounds = 100 * np.array([group.interval for group in groups])
    if full:
        axes.axhspan(*bounds[0], color=look.colour, alpha=0.08, linewidth=0)  # one group: its keep ratio is 1
        axes.plot(x, y, look.marker, color=look.colour, markersize=11, zorder=5)
        return
    axes.errorbar(
        x, y, yerr=np.abs(bounds.T - y), color=look.colour, linestyle="", elinewidth=0.8, alpha=0.45, zorder=2
    )
    axes.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker, markersize=4, linewidth=1.2, zorder=3)


def _ticks(low: float, high: float) -> list[float]:
    """Return ticks of 1, 2 and 5 times powers of ten, or only powers of ten if those are more than seven."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return ticks if len(ticks) <= 7 else [tick for tick in ticks if f"{tick:e}".startswith("1")]


MEASURES = {
    "correct": ("right answers", (0.0, 1.0)),
    "needle_recall": ("needle kept by the selector", (0.0, 1.0)),
    "needle_margin": ("margin of the needle's chunk", (-1.0, 1.0)),
}
BINS = 10
SINGLE = "*"  # after the value of a cell with one example, if other cells have more

Doubles = npt.NDArray[np.float64]


def depth_rows(depths: Sequence[float]) -> tuple[list[str], Doubles]:
    """Return names and upper edges of the map's rows: the depths if they are a grid of at most 21, else ten bins."""
    grid = sorted(set(depths))
    if len(grid) <= 21 and len(depths) >= 2 * len(grid):
        return [f"{100 * depth:.0f}" for depth in grid], np.array(
            grid
        ) + 1e-9  # upper edges, with a margin for rounding
    edges = np.linspace(0, 1, BINS + 1)
    names = [f"{100 * low:.0f} to {100 * high:.0f}" for low, high in pairwise(edges)]
    edges[-1] += 1e-9  # a margin for rounding, so that a depth of 1 is in the last bin
    return names, edges[1:]


def heat(rows: Sequence[Row], measure: str, lengths: Sequence[int], edges: Doubles) -> tuple[Doubles, Doubles]:
    """Return means (depths, lengths), NaN without an example, and the number of examples of each."""
    total, count = np.zeros((len(edges), len(lengths))), np.zeros((len(edges), len(lengths)))
    column = {length: i for i, length in enumerate(lengths)}
    for row in rows:
        if row.get(measure) is not None:
            cell = int(np.searchsorted(edges, row["depth"])), column[row["tokens_asked"]]
            total[cell] += row[measure]
            count[cell] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), count


def needle_figure(table: Table, task: str, keep: float, strategies: Sequence[str]) -> Figure:
    """Draw three maps per strategy of one task at one keep ratio; the full prefill has only that of its answers."""
    with_depth = [row for row in table.rows if row["task"] == task and row.get("depth") is not None]
    rows = [{**row, "depth": row.get("asked_depth", row["depth"])} for row in with_depth]
    lengths = sorted({row["tokens_asked"] for row in rows})
    # Every example once, whatever the number of strategies and keep ratios that read it.
    names, edges = depth_rows(list({row["example"]: row["depth"] for row in rows}.values()))
    width, height = 0.46 * len(lengths) + 1.1, 0.2 * len(names) + 0.65
    figure = Figure(figsize=(3 * width + 1.2, height * len(strategies) + 1.0), layout="constrained")
    grid = figure.subplots(len(strategies), len(MEASURES), squeeze=False)
    for line, name in zip(grid, strategies, strict=True):
        full = name.startswith(FULL)
        own_rows = [row for row in rows if row["strategy"] == name and (full or row["keep_ratio"] == keep)]
        for axes, (measure, (title, limits)) in zip(line, MEASURES.items(), strict=True):
            if full and measure != "correct":
                axes.axis("off")
                continue
            values, count = heat(own_rows, measure, lengths, edges)
            draw_map(axes, values, limits, count)
            axes.set_xticks(range(len(lengths)), [tokens_label(n) for n in lengths], rotation=45, fontsize=8)
            axes.set_yticks(range(len(names)), names if axes is line[0] else [], fontsize=SMALLEST)
            axes.set_title(f"{name} ({span(count)})" if axes is line[0] else title, fontsize=8, loc="left")
        line[0].set_ylabel("depth (%)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("prompt tokens", fontsize=8)
    for column, (title, limits) in enumerate(MEASURES.values()):
        scale = ScalarMappable(Normalize(*limits), NEEDLE_COLOURS)
        bar = figure.colorbar(scale, ax=list(grid[:, column]), location="bottom", fraction=0.04, pad=0.02, aspect=30)
        bar.set_ticks(np.linspace(*limits, 5).tolist())
        bar.set_label(title, fontsize=8)
        bar.ax.tick_params(labelsize=8)
        bar.ax.axvspan(limits[0], sum(limits) / 2, fill=False, hatch=HATCH, edgecolor="white", alpha=0.4, linewidth=0)
    figure.suptitle(
        f"{task}: depth over prompt tokens, keep ratio {keep:g}; hatched: lower half of the scale", fontsize=10
    )
    return figure


def draw_map(axes: Axes, values: Doubles, limits: tuple[float, float], count: Doubles) -> None:
    """Draw a heat map with its values; cells without an example are grey, those of a single one are marked."""
    mixed = count.max() > 1
    axes.set_facecolor("#e9ecef")
    axes.imshow(values, cmap=NEEDLE_COLOURS, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    hatch_lower_half(axes, values, sum(limits) / 2)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            text = f"{100 * value:.0f}" if limits[0] == 0 else f"{value:.1f}"
            text += SINGLE if mixed and count[row, column] == 1 else ""
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=INK)
    axes.set_xticks(np.arange(values.shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="both", length=0)


def span(count: Doubles) -> str:
    """Return the smallest and largest number of examples per cell as text, and the meaning of `SINGLE` if used."""
    low, high = int(count.min()), int(count.max())
    if high == 1:
        return "one example per cell" if low else "at most one example per cell"
    text = f"n = {low} per cell" if low == high else f"n = {low} to {high} per cell"
    return text + (f"; {SINGLE} one example" if (count == 1).any() else "")
