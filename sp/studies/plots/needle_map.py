"""Needle maps: length across, depth down, in the field's colours; accuracy, what the selector kept, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from sp.studies.figures import INK
from sp.studies.style import NEEDLE_COLOURS, tokens_label
from sp.studies.sweep.cells import FULL, Table
from sp.studies.sweep.store import Row

MEASURES = {
    "correct": ("right answers", (0.0, 1.0)),
    "needle_recall": ("needle kept by the selector", (0.0, 1.0)),
    "needle_margin": ("margin of the needle's chunk", (-1.0, 1.0)),
}
BINS = 10
SINGLE = "*"
"""Behind the value of a cell of one example, where others have more."""

Doubles = npt.NDArray[np.float64]


def depth_rows(depths: Sequence[float]) -> tuple[list[str], Doubles]:
    """Rows of the map: the depths of the examples if they are a grid of at most 21, else ten bins; names and edges."""
    grid = sorted(set(depths))
    if len(grid) <= 21 and len(depths) >= 2 * len(grid):
        return [f"{100 * depth:.0f}" for depth in grid], np.array(grid) + 1e-9
    edges = np.linspace(0, 1, BINS + 1)
    names = [f"{100 * low:.0f} to {100 * high:.0f}" for low, high in pairwise(edges)]
    edges[-1] += 1e-9
    return names, edges[1:]


def heat(rows: Sequence[Row], measure: str, lengths: Sequence[int], edges: Doubles) -> tuple[Doubles, Doubles]:
    """Means (depths, lengths), NaN where there is no example, and how many examples each rests on."""
    total, count = np.zeros((len(edges), len(lengths))), np.zeros((len(edges), len(lengths)))
    column = {length: i for i, length in enumerate(lengths)}
    for row in rows:
        if row.get(measure) is not None:
            at = int(np.searchsorted(edges, row["depth"])), column[row["tokens_asked"]]
            total[at] += row[measure]
            count[at] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), count


def needle_figure(table: Table, task: str, keep: float, strategies: Sequence[str]) -> Figure:
    """Three maps a strategy at one keep ratio, examples of one task; the full prefill has only its answers."""
    there = [row for row in table.rows if row["task"] == task and row.get("depth") is not None]
    rows = [{**row, "depth": row.get("asked_depth", row["depth"])} for row in there]
    lengths = sorted({row["tokens_asked"] for row in rows})
    names, edges = depth_rows(list({row["example"]: row["depth"] for row in rows}.values()))
    width, height = 0.42 * len(lengths) + 1.1, 0.17 * len(names) + 0.55
    figure = Figure(figsize=(3 * width + 1.2, height * len(strategies) + 1.0), layout="constrained")
    grid = figure.subplots(len(strategies), len(MEASURES), squeeze=False)
    for line, name in zip(grid, strategies, strict=True):
        full = name.startswith(FULL)
        mine = [row for row in rows if row["strategy"] == name and (full or row["keep_ratio"] == keep)]
        for axes, (measure, (_, limits)) in zip(line, MEASURES.items(), strict=True):
            if full and measure != "correct":
                axes.axis("off")
                continue
            values, count = heat(mine, measure, lengths, edges)
            draw_map(axes, values, limits, count)
            axes.set_xticks(range(len(lengths)), [tokens_label(n) for n in lengths], rotation=45, fontsize=7)
            axes.set_yticks(range(len(names)), names if axes is line[0] else [], fontsize=6)
            axes.set_title(f"{name} ({span(count)})" if axes is line[0] else "", fontsize=8, loc="left")
        line[0].set_ylabel("depth (%)", fontsize=8)
    for column, (title, limits) in enumerate(MEASURES.values()):
        scale = ScalarMappable(Normalize(*limits), NEEDLE_COLOURS)
        bar = figure.colorbar(scale, ax=list(grid[:, column]), location="bottom", fraction=0.04, pad=0.02, aspect=30)
        bar.set_ticks(np.linspace(*limits, 5).tolist())
        bar.set_label(title, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(f"{task}: depth over prompt tokens, keep ratio {keep:g}", fontsize=10)
    return figure


def draw_map(axes: Axes, values: Doubles, limits: tuple[float, float], count: Doubles) -> None:
    """A heat map with its values written in; grey where nothing was measured, marked where one example was."""
    mixed = count.max() > 1
    axes.set_facecolor("#e9ecef")
    axes.imshow(values, cmap=NEEDLE_COLOURS, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            text = f"{100 * value:.0f}" if limits[0] == 0 else f"{value:.1f}"
            text += SINGLE if mixed and count[row, column] == 1 else ""
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color=INK)
    axes.set_xticks(np.arange(values.shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="both", length=0)


def span(count: Doubles) -> str:
    """Smallest and largest number of examples of a cell, and what that says where it is one.

    Examples
    --------
    >>> span(np.array([5.0, 9.0])), span(np.ones(2))
    ('n = 5 to 9 a cell', 'one example a cell')
    >>> span(np.array([1.0, 9.0]))
    'n = 1 to 9 a cell; * one example'
    """
    low, high = int(count.min()), int(count.max())
    if high == 1:
        return "one example a cell" if low else "at most one example a cell"
    told = f"n = {low} a cell" if low == high else f"n = {low} to {high} a cell"
    return told + (f"; {SINGLE} one example" if (count == 1).any() else "")
