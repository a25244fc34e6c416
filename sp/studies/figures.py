"""Pictures of runs, drawn without a display and fit for a paper."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from sp.arrays import Bools, Floats
from sp.errors import ConfigError
from sp.session import RunResult
from sp.trace import write_atomic

INK, KEPT, NEEDLE, QUESTION = "#1f2933", "#f08c00", "#2f9e44", "#1c7ed6"
BIN = 8
MOST_DOTS = 1 << 15


def save_png(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Write the figure as PNG, complete or not at all.

    A palette of 256 colours draws plots as well as all of them, in a quarter of the bytes. ConfigError if a picture
    would be so large that no viewer shows it.
    """
    width, height = figure.get_size_inches() * dpi
    if max(width, height) > MOST_DOTS:
        raise ConfigError(f"{path.name} would have {width:.0f} x {height:.0f} dots; report fewer records at a time")
    drawn, buffer = BytesIO(), BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(drawn, dpi=dpi, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    palette.save(buffer, format="png", optimize=True, dpi=(dpi, dpi))
    return write_atomic(path, buffer.getvalue())


def shade(axes: Axes, mask: Bools, **style: Any) -> None:
    """Shade every run of true tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    for start, end in edges.reshape(-1, 2):
        axes.axvspan(start, end, **{"linewidth": 0, **style})


def bin_max(values: Floats) -> tuple[Floats, Floats]:
    """Maximum over bins of 8 tokens, so that a line of any length stays readable; bin starts and maxima."""
    starts = np.arange(0, len(values), BIN)
    return starts.astype(np.float32), np.maximum.reduceat(values, starts)


def importance_figure(result: RunResult) -> Figure:
    """Importance along the prompt, the tokens kept, and importance by drafter layer.

    Needle and question are shaded in all panels; the x axis counts tokens of the target's vocabulary in the
    upper panels and of the drafter's in the heatmap.
    """
    if result.selection is None or result.scores is None:
        raise ValueError("the run kept everything, so there is no selection to draw")
    layers = result.importance.by_layer if result.importance else None
    heights = [3.0, 0.5] + ([0.35 * len(layers) + 0.6] if layers is not None else [])
    figure = Figure(figsize=(10, 1.2 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    tokens = len(result.prompt)
    needle, question = result.prompt.mask("needle"), result.prompt.mask("question")

    x, y = bin_max(result.scores)
    grid[0].plot(x, y, color=INK, linewidth=0.7)
    floor = float(np.quantile(y[y > 0], 0.02)) if (y > 0).any() else 1e-6
    if (y > 0).any():
        grid[0].set_yscale("log")
        grid[0].set_ylim(bottom=floor * 0.5)
    grid[0].set_ylabel("importance\n(max of 8 tokens)")
    bounds = result.selection.bounds
    means = np.maximum(result.selection.chunk_scores, floor * 0.5)
    grid[0].stairs(means, bounds, baseline=None, color=KEPT, linewidth=1.0, alpha=0.8)

    grid[1].set_yticks([])
    grid[1].set_ylabel("kept", rotation=0, ha="right", va="center")
    shade(grid[1], result.selection.kept, color=KEPT)
    for axes in grid[:2]:
        shade(axes, needle, color=NEEDLE, alpha=0.35)
        shade(axes, question, color=QUESTION, alpha=0.25)
        axes.set_xlim(0, tokens)
    grid[0].tick_params(labelbottom=False)
    grid[1].set_xlabel("prompt token")
    if layers is not None:
        image = grid[2].imshow(np.log10(np.maximum(layers, 1e-6)), aspect="auto", cmap="magma", interpolation="nearest")
        grid[2].set_yticks(range(len(layers)))
        grid[2].set_ylabel("drafter\nattention layer")
        grid[2].set_xlabel("chunk of 32 drafter tokens")
        figure.colorbar(image, ax=grid[2], label="log10 importance", pad=0.01)
    handles = [
        grid[0].plot([], [], color=INK, label="token importance")[0],
        grid[0].plot([], [], color=KEPT, label="score the selector compared; kept tokens")[0],
        grid[0].axvspan(0, 0, color=NEEDLE, alpha=0.35, label="needle"),
        grid[0].axvspan(0, 0, color=QUESTION, alpha=0.25, label="question"),
    ]
    grid[0].legend(handles=handles, loc="upper center", ncols=4, fontsize=8, frameon=False)
    kept = result.kept_tokens
    figure.suptitle(f"{kept:,} of {tokens:,} prompt tokens kept ({100 * kept / tokens:.1f} %)", fontsize=11)
    return figure
