"""Where the time to the first token goes: one bar a strategy, one colour a stage."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from sp.studies.figures import INK
from sp.studies.style import tidy, tokens_label
from sp.studies.sweep.cells import Table

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
