"""Curves of training runs, with stage borders: ``python fit_curves.py OUT.png FIT.jsonl...``.

Right first tokens of answers to the first question of a document, asked as examples ask it, task by task, each point
the mean of its neighbours; black is the share over all questions. Below, the loss and the rate. A column a part.
"""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from parts import TASKS
from PIL import Image

HARD = "!"
"""Ends the name of a task whose question is the one that examples ask."""
COLOURS = ("#868e96", "#1c7ed6", "#0c8599", "#2f9e44", "#ae3ec9", "#f08c00", "#e03131", "#846358", "#e64980")
ENOUGH = 15e6
"""Tokens of a stage from which on tasks are drawn: in less there are too few questions of each."""
WIDTH = 5
"""Logged lines, about 5 s each, that a point of a task is the mean of."""
ACROSS = 4
"""Columns of the figure."""


def points(path: Path) -> list[dict[str, Any]]:
    """What was logged every few seconds, of all starts in a file; tokens and seconds go on where a start ended."""
    found: list[dict[str, Any]] = []
    before = last = {"tokens": 0, "seconds": 0.0}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "config" in record:
            before = last
        if "first_acc" in record:
            last = {key: before[key] + record[key] for key in before}
            found.append(record | last)
    return found


def spans(logged: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Stages as (name, first line, line after the last).

    Examples
    --------
    >>> spans([{"stage": "a"}, {"stage": "a"}, {"stage": "b"}])
    [('a', 0, 2), ('b', 2, 3)]
    """
    borders = [i for i, one in enumerate(logged) if i == 0 or one["stage"] != logged[i - 1]["stage"]]
    return [(logged[a]["stage"], a, z) for a, z in zip(borders, [*borders[1:], len(logged)], strict=True)]


def smooth(values: list[float], width: int = WIDTH) -> NDArray[np.float64]:
    """Means of up to `width` neighbours, of what is there; NaN where nothing is.

    Examples
    --------
    >>> smooth([0.0, 1.0, 2.0, float("nan")], 3).tolist()
    [0.5, 1.0, 1.5, 2.0]
    """
    half = width // 2
    near = [np.array(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    return np.array([one[~np.isnan(one)].mean() if not np.isnan(one).all() else np.nan for one in near])


def draw(above: Axes, below: Axes, logged: list[dict[str, Any]]) -> Axes:
    """One run over seconds, no line across the border of a stage; gives the axes of the rate."""
    rate = below.twinx()
    for number, (name, a, z) in enumerate(spans(logged)):
        lines = logged[a:z]
        at = [line["seconds"] for line in lines]
        enough = lines[-1]["tokens"] - (logged[a - 1]["tokens"] if a else 0) >= ENOUGH
        for task, colour in zip(TASKS, COLOURS, strict=True):
            right = [line["asked_first"].get(task + HARD, np.nan) for line in lines]
            if enough and not np.isnan(right).all():
                above.plot(at, 100 * smooth(right), color=colour, lw=1.1, label=task)
        above.plot(at, [100 * line["first_acc"] for line in lines], color="0.1", lw=1.8, label="all questions")
        below.semilogy(at, [line["loss"] for line in lines], color="0.1", lw=1.3)
        rate.plot(at, [1e3 * line["lr"] if line["lr"] else np.nan for line in lines], color="#f08c00", lw=1.1, ls=":")
        start = logged[a - 1]["seconds"] if a else 0.0
        for axes in (above, below):
            axes.axvspan(start, at[-1], color="0.95" if number % 2 else "1", lw=0, zorder=-2)
        above.text(start, 1.5, f" {name}", rotation=90, fontsize=7, color="0.35", va="bottom")
    rate.set(ylim=(0, 2.2))
    rate.tick_params(labelsize=8, colors="#d9480f")
    rate.spines[["top"]].set_visible(False)
    return rate


def figure_of(files: list[Path]) -> Figure:
    """A column a file, `ACROSS` of them in a row, all on the same scales of accuracy and loss."""
    rows = -(-len(files) // ACROSS)
    columns = min(len(files), ACROSS)
    figure = Figure(figsize=(3.2 * columns, 5.2 * rows), layout="constrained")
    grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=(3, 2) * rows)
    named: dict[str, Any] = {}
    lowest, highest = np.inf, 0.0
    for number in range(rows * columns):
        at, column = 2 * (number // columns), number % columns
        above, below = grid[at, column], grid[at + 1, column]
        if number >= len(files):
            above.remove()
            below.remove()
            continue
        logged = points(files[number])
        rate = draw(above, below, logged)
        lowest, highest = (
            pick(edge, *(one["loss"] for one in logged)) for pick, edge in ((min, lowest), (max, highest))
        )
        above.set_title(files[number].stem.removeprefix("fit_").replace("_", " "), fontsize=10)
        above.set(ylim=(0, 102))
        above.tick_params(labelbottom=False)
        below.set(xlabel="seconds")
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
        if column == 0:
            above.set_ylabel("right first tokens (%)")
            below.set_ylabel("loss")
        if column == columns - 1 or number == len(files) - 1:
            rate.set_ylabel("rate (1e-3, dotted)", color="#d9480f", fontsize=8)
        named = dict(zip(*reversed(above.get_legend_handles_labels()), strict=True)) | named
    for axes in grid[1::2].flat:
        axes.set(ylim=(0.8 * lowest, 1.2 * highest))
    shown = [name for name in (*TASKS, "all questions") if name in named]
    figure.legend(
        [named[name] for name in shown], shown, loc="outside lower center", ncols=10, fontsize=8, frameon=False
    )
    return figure


def save(figure: Figure, path: str) -> None:
    """Write a picture of 256 colours, chosen so that thin lines keep theirs: less than half of the bytes."""
    whole = BytesIO()
    figure.savefig(whole, format="png", dpi=130)
    Image.open(whole).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


if __name__ == "__main__":
    save(figure_of([Path(one) for one in sys.argv[2:]]), sys.argv[1])
