"""Figures of runs, drawn without a display and suitable for a paper, and what all figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from sp.arrays import Bools, Doubles
from sp.errors import ConfigError
from sp.session import RunResult
from sp.studies.sweep.cells import kind_of
from sp.trace import write_atomic

INK, KEPT, NEEDLE, QUESTION = "#1f2933", "#f08c00", "#2f9e44", "#1c7ed6"
BIN = 8
MOST_DOTS = 1 << 15
SHARPNESS = 1.0  # factor of all resolutions; tests that only check that a figure can be drawn lower it


PictureFormat = Literal["png", "pdf", "svg"]
SMALLEST = 7  # points of the smallest letters in a figure, as most journals require
DATES = {".pdf": "CreationDate", ".svg": "Date"}
"""Vector formats by suffix, and the metadata key that is omitted so that a figure saved twice is the same file."""


def save_figure(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Write the figure atomically, in the format of the path's suffix.

    Parameters
    ----------
    figure : Figure
    path : Path
        Its suffix is ``.pdf`` or ``.svg`` for a vector format; anything else is a PNG.
    dpi : int
        Dots per inch of a PNG, and of the heatmaps inside a vector format.

    Returns
    -------
    Path
        The path of the file.

    Raises
    ------
    ConfigError
        A PNG would be too large for viewers.
    """
    date = DATES.get(path.suffix)
    if date is None:
        return _save_png(figure, path, dpi)
    drawing = BytesIO()
    FigureCanvasAgg(figure)
    # Journals refuse Type 3 fonts; a fixed salt gives the ids of an SVG the same names every time.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "sp"}):
        figure.savefig(drawing, dpi=dpi, format=path.suffix.removeprefix("."), metadata={date: None})
    return write_atomic(path, drawing.getvalue())


def picture_markdown(title: str, name: str) -> str:
    """Return the Markdown of a picture; a PDF, which pages cannot embed, is a link.

    >>> picture_markdown("Stages", "stages.svg"), picture_markdown("Stages", "stages.pdf")
    ('![Stages](stages.svg)', '[Stages](stages.pdf)')
    """
    return f"{'' if name.endswith('.pdf') else '!'}[{title}]({name})"


def _save_png(figure: Figure, path: Path, dpi: int) -> Path:
    """Write a PNG with a palette of 256 colours, which looks the same for plots and needs a quarter of the bytes."""
    dpi = round(dpi * SHARPNESS)
    width, height = figure.get_size_inches() * dpi
    if max(width, height) > MOST_DOTS:
        raise ConfigError(f"{path.name} would have {width:.0f} x {height:.0f} pixels; report fewer records at a time")
    drawn, buffer = BytesIO(), BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(drawn, dpi=dpi, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    palette.save(buffer, format="png", optimize=True, dpi=(dpi, dpi))
    return write_atomic(path, buffer.getvalue())


HATCH = "////"


def hatch_lower_half(axes: Axes, values: Doubles, middle: float) -> None:
    """Hatch the cells of a map whose value is below the middle of its scale, so that it is readable without colour."""
    for row, column in zip(*np.nonzero(values < middle), strict=True):  # False for NaN, which was not measured
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, hatch=HATCH, edgecolor="white", alpha=0.4, linewidth=0
            )
        )


def shade(axes: Axes, mask: Bools, **style: Any) -> None:
    """Shade every run of tokens that is True in the mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    for start, end in edges.reshape(-1, 2):
        axes.axvspan(start, end, **{"linewidth": 0, **style})


def importance_figure(result: RunResult) -> Figure:
    """Draw importance along the prompt, the kept tokens, and a map with a row for each attention layer that scores.

    Needle and question are shaded. The x axis counts tokens of the target, in the map those of the scoring model.
    """
    if result.selection is None or result.scores is None:
        raise ValueError("this run was not compressed, so there is no selection to draw; use compress='always'")
    layers = result.importance.by_layer if result.importance else None
    heights = [3.0, 0.5] + ([0.35 * len(layers) + 0.6] if layers is not None else [])
    figure = Figure(figsize=(10, 1.2 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    tokens = len(result.prompt)
    needle, question = result.prompt.mask("needle"), result.prompt.mask("question")

    x = np.arange(0, tokens, BIN)
    y = np.maximum.reduceat(result.scores, x)  # the maximum of each bin keeps narrow peaks visible
    grid[0].plot(x, y, color=INK, linewidth=0.7)
    floor = float(np.quantile(y[y > 0], 0.02)) if (y > 0).any() else 1e-6
    if (y > 0).any():
        grid[0].set_yscale("log")  # importance spans several decades
        grid[0].set_ylim(bottom=floor * 0.5)  # a quantile, as a few tiny values would squeeze all others
    grid[0].set_ylabel("importance\n(max of 8 tokens)")
    bounds = result.selection.bounds  # token index of every edge between the selector's chunks
    means = np.maximum(result.selection.chunk_scores, floor * 0.5)
    grid[0].stairs(means, bounds, baseline=None, color=KEPT, linewidth=1.0, alpha=0.8)

    grid[1].set_yticks([])
    grid[1].set_ylabel("kept", rotation=0, ha="right", va="center")
    shade(grid[1], result.selection.selected, color=KEPT)
    for axes in grid[:2]:
        shade(axes, needle, color=NEEDLE, alpha=0.35)
        shade(axes, question, color=QUESTION, alpha=0.25)
        axes.set_xlim(0, tokens)
    grid[0].tick_params(labelbottom=False)
    grid[1].set_xlabel("prompt token")
    if layers is not None:
        image = grid[2].imshow(np.log10(np.maximum(layers, 1e-6)), aspect="auto", cmap="magma", interpolation="nearest")
        reader = "target" if result.options is not None and result.options.scorer.reads_target else "drafter"
        grid[2].set_yticks([])  # rows are not numbered, as not all layers score
        grid[2].set_ylabel(f"a row for each\nattention layer\nof the {reader}\nthat scores,\nfirst on top", fontsize=9)
        grid[2].set_xlabel(f"chunk of 32 {reader} tokens")
        figure.colorbar(image, ax=grid[2], label="log10 importance", pad=0.01)
    handles = [
        grid[0].plot([], [], color=INK, label="token importance")[0],
        grid[0].plot([], [], color=KEPT, label="score of a chunk; kept tokens")[0],
        grid[0].axvspan(0, 0, color=NEEDLE, alpha=0.35, label="needle"),
        grid[0].axvspan(0, 0, color=QUESTION, alpha=0.25, label="question"),
    ]
    grid[0].legend(handles=handles, loc="upper center", ncols=4, fontsize=8, frameon=False)
    selected = result.kept_tokens
    figure.suptitle(f"{selected:,} of {tokens:,} prompt tokens kept ({100 * selected / tokens:.1f} %)", fontsize=11)
    return figure


COLOURS = (
    "#1c7ed6", "#f08c00", "#2f9e44", "#ae3ec9", "#e03131", "#0c8599", "#846358", "#e64980", "#5c940d", "#4263eb",
    "#a61e4d", "#087f5b",
)  # fmt: skip
GREYS = ("#495057", "#868e96", "#adb5bd")
MARKERS = "osD^vPX*"
NEEDLE_COLOURS = LinearSegmentedColormap.from_list("needle", ["#F0496E", "#EBB839", "#0CD79F"])
"""Red, yellow and green of Kamradt's pictures (LLMTest_NeedleInAHaystack)."""


@dataclass(frozen=True)
class Look:
    """Colour, marker and line style of a strategy."""

    colour: str
    marker: str
    line: str


def looks(strategies: Sequence[str]) -> dict[str, Look]:
    """Return the look of every strategy: colours for scorers, dashed greys for controls and oracles, ink for the full
    prefill. The same names always get the same looks."""
    by_name, colours, greys = {}, 0, 0
    for name in strategies:
        kind = kind_of(name)
        if kind == "full":
            by_name[name] = Look(INK, "*", "-")
        elif kind != "scorer":
            by_name[name] = Look(GREYS[greys % len(GREYS)], MARKERS[greys % len(MARKERS)], "--")
            greys += 1
        else:
            turn = colours // len(COLOURS)  # once all colours are used, they come again with another line style
            by_name[name] = Look(
                COLOURS[colours % len(COLOURS)], MARKERS[colours % len(MARKERS)], ("-", ":", "-.")[turn % 3]
            )
            colours += 1
    return by_name


def series_factor(place: int, count: int, step: float = 0.025) -> float:
    """Return the factor that shifts a series on a logarithmic axis, so that equal series do not cover each other."""
    return float((1 + step) ** (place - (count - 1) / 2))


def tokens_label(tokens: float) -> str:
    """Format a number of tokens for an axis: 512, 8K or 1.5K."""
    if tokens < 1000:
        return f"{tokens:g}"
    return f"{tokens / 1024:g}K" if tokens % 1024 == 0 else f"{tokens / 1000:.3g}K"


def plain_log(axes: Axes, ticks: Sequence[float], *, tokens: bool = False) -> None:
    """Make the x axis logarithmic with these ticks, labelled as plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tokens_label(x) if tokens else f"{x:g}"))


def tidy(axes: Axes) -> None:
    """Draw a thin grid, and remove the top and right edges."""
    axes.grid(True, which="major", color="#e9ecef", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
