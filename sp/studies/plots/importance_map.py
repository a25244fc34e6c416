"""Where a drafter's attention went: importance by layer and by head along the prompt, needles and question marked.

Drawn from the trace that `sp run` writes (``trace.json`` and ``trace.safetensors``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.scoring.base import HEATMAP_CHUNK
from sp.studies.figures import NEEDLE, QUESTION

MARKS = {"needle": NEEDLE, "question": QUESTION}


@dataclass(frozen=True)
class SavedRun:
    """A run read back from its folder.

    Parameters
    ----------
    facts : dict
        What `trace.json` says: `spans`, `options`, `stages` and more.
    arrays : dict
        Of `trace.safetensors`: `by_layer` (layers, chunks), `by_head` (layers, heads, chunks), `drafter_bytes` ...
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> SavedRun:
        """Read the two files; ConfigError if one is missing or damaged, or the run was not compressed."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            facts = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
            arrays = load_file(folder / "trace.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(f"{folder}: no trace of sp run ({error})") from None
        return cls(facts, arrays)

    @property
    def has_maps(self) -> bool:
        """Whether the drafter's attention was recorded."""
        return {"by_layer", "by_head", "drafter_bytes"} <= set(self.arrays)

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
    figure = Figure(figsize=(10, 1.9 + 0.28 * len(layers) + 0.17 * count * per_layer), layout="constrained")
    grid = figure.subplots(2, 1, height_ratios=[0.5 + 0.28 * len(layers), 0.5 + 0.17 * count * per_layer])
    _draw(figure, grid[0], layers, [f"{i}" for i in range(len(layers))], "max over heads")
    names = [f"{layer}.{head}" for layer in range(count) for head in range(per_layer)]
    _draw(figure, grid[1], heads.reshape(-1, chunks), names, "each head")
    grid[0].set_ylabel("scored layer", fontsize=9)
    grid[1].set_ylabel("layer.head", fontsize=9)
    grid[1].set_xlabel(f"chunk of {HEATMAP_CHUNK} drafter tokens", fontsize=9)
    for line in range(1, count):
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
    axes.set_yticks(range(len(names)), names, fontsize=7)
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
