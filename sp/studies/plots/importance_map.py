"""Where a drafter's attention went: importance by layer and by head along the prompt, needles and question marked.

Drawn from the trace that `sp run` writes (``trace.json`` and ``trace.safetensors``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, short
from sp.json_lines import LIST, OBJECT, TEXT, check, read_object, whole
from sp.scoring.base import HEATMAP_CHUNK
from sp.studies.figures import NEEDLE, QUESTION

MAPS: Mapping[str, tuple[int, type[np.generic]]] = {
    "by_layer": (2, np.floating),
    "by_head": (3, np.floating),
    "drafter_bytes": (2, np.integer),
}
"""Dimensions and kind of the arrays that are drawn."""
MOST_ROWS, MOST_CHUNKS = 1 << 13, 1 << 17
"""Layers times heads, and chunks, beyond those of any drafter and prompt."""
TALLEST, LABELS = 60.0, 256
"""Inches of the map of heads, and rows of a map that have a name."""
MARKS = {"needle": NEEDLE, "question": QUESTION}


@dataclass(frozen=True)
class SavedRun:
    """A run read back from its folder.

    `facts`: what `trace.json` says: `spans`, `options`, `stages` and more; `arrays`: of `trace.safetensors`: `by_layer`
    (layers, chunks), `by_head` (layers, heads, chunks), `drafter_bytes` .
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> SavedRun:
        """Read the two files; ConfigError if one is missing or damaged, or the run was not compressed."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        facts = read_object(folder / "trace.json", "a folder of sp run")
        try:
            arrays = load_file(folder / "trace.safetensors")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ConfigError(f"{folder}: no trace of sp run ({short(error)})") from None
        run = cls(facts, arrays)
        if run.has_maps:
            run.check(str(folder))
        return run

    def check(self, where: str) -> None:
        """ConfigError unless spans and arrays are such as can be drawn."""
        check(self.facts, {"spans": LIST}, f"{where}/trace.json")
        for span in self.facts["spans"]:
            check({"span": span}, {"span": OBJECT}, f"{where}/trace.json: spans")
            check(span, {"kind": TEXT, "start_byte": whole(), "end_byte": whole()}, f"{where}/trace.json: spans")
        for name, (dimensions, kind) in MAPS.items():
            found = self.arrays[name]
            *rows, last = found.shape or (0,)
            if name != "drafter_bytes" and (math.prod(rows) > MOST_ROWS or last > MOST_CHUNKS):
                raise ConfigError(f"{where}/trace.safetensors: {name} is larger than any map of sp run")
            if found.ndim != dimensions or not found.size or not np.issubdtype(found.dtype, kind):
                raise ConfigError(f"{where}/trace.safetensors: {name} is not such as sp run writes it")
        if self.arrays["drafter_bytes"].shape[1] != 2:
            raise ConfigError(f"{where}/trace.safetensors: drafter_bytes must be pairs")

    @property
    def has_maps(self) -> bool:
        """Whether the drafter's attention was recorded."""
        return MAPS.keys() <= set(self.arrays)

    def chunks_of(self, kind: str) -> list[tuple[float, float]]:
        """Chunks, as fractional ranges, that the spans of a kind cover."""
        token_bytes: Ints = self.arrays["drafter_bytes"]
        found = []
        for span in self.facts["spans"]:
            if span["kind"] == kind:
                first = int(np.searchsorted(token_bytes[:, 1], span["start_byte"], side="right"))
                last = int(np.searchsorted(token_bytes[:, 0], span["end_byte"], side="left"))
                found.append((first / HEATMAP_CHUNK, last / HEATMAP_CHUNK))
        return found


def importance_map(run: SavedRun) -> Figure:
    """Layers over chunks above, heads over chunks below, on one scale: share of the largest value of each map."""
    layers: Floats = run.arrays["by_layer"]
    heads: Floats = run.arrays["by_head"]
    count, per_layer, chunks = heads.shape
    tall = [0.5 + min(0.28 * len(layers), TALLEST), 0.5 + min(0.17 * count * per_layer, TALLEST)]
    figure = Figure(figsize=(10, 0.9 + sum(tall)), layout="constrained")
    grid = figure.subplots(2, 1, height_ratios=tall)
    _draw(figure, grid[0], layers, [f"{i}" for i in range(len(layers))], "max over heads")
    names = [f"{layer}.{head}" for layer in range(count) for head in range(per_layer)]
    _draw(figure, grid[1], heads.reshape(-1, chunks), names, "each head")
    grid[0].set_ylabel("scored layer", fontsize=9)
    grid[1].set_ylabel("layer.head", fontsize=9)
    grid[1].set_xlabel(f"chunk of {HEATMAP_CHUNK} drafter tokens", fontsize=9)
    for line in range(1, count if count <= LABELS else 0):
        grid[1].axhline(line * per_layer - 0.5, color="white", linewidth=0.8)
    for axes in grid:
        _mark(axes, run)
    handles = [grid[0].plot([], [], color=colour, linewidth=3, label=kind)[0] for kind, colour in MARKS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    figure.suptitle("Importance of the prompt, by layer and head of the drafter", fontsize=10, x=0.02, ha="left")
    return figure


def _draw(figure: Figure, axes: Axes, values: Floats, names: list[str], title: str) -> None:
    shown = np.log10(np.maximum(values, 1e-6))
    image = axes.imshow(shown, aspect="auto", cmap="magma", interpolation="nearest")
    named = range(0, len(names), -(-len(names) // LABELS))
    axes.set_yticks(named, [names[row] for row in named], fontsize=7)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(title, fontsize=9, loc="left", pad=12)
    figure.colorbar(image, ax=axes, label="log10 importance", pad=0.01)


def _mark(axes: Axes, run: SavedRun) -> None:
    """Needles and question as bars on the upper edge, and thin lines down the map."""
    for kind, colour in MARKS.items():
        for start, end in run.chunks_of(kind):
            for x in (start - 0.5, end - 0.5):
                axes.axvline(x, color=colour, linewidth=0.6, alpha=0.8)
            axes.plot(
                [start - 0.5, max(end, start + 0.6) - 0.5], [1.02, 1.02], color=colour, linewidth=4,
                transform=axes.get_xaxis_transform(), clip_on=False, solid_capstyle="butt",
            )  # fmt: skip
