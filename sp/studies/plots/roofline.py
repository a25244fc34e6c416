"""Roofline of recorded kernels: arithmetic rate over arithmetic intensity, under the measured limits of their card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sp.bench.record import is_current, newest
from sp.errors import ConfigError
from sp.studies.figures import INK, save_png

COLOURS = ("#1c7ed6", "#f08c00", "#2f9e44", "#9c36b5", "#e03131", "#0c8599", "#846358", "#495057")
LIBRARY = "cublas"
MARKERS = {"sm_90a": "o", "portable": "s", LIBRARY: "x"}
EIGHT_BITS = ("int8", "fp8")
RATE = "TFLOP/s (int8: TOP/s)"


class Limits(NamedTuple):
    """What anything reached: GB/s, TFLOP/s in 16 bits or more, and in eight bits (0 where nothing was recorded)."""

    gb_s: float
    tflops: float
    eight_bits: float


@dataclass(frozen=True)
class Point:
    """One measured kernel.

    `family`: the bench it was recorded by; `intensity`: operations for each byte that must be moved; 0 for a copy,
    which is not drawn but shows the bandwidth; `tflops`, `gb_s`: rates by the median time; `config`: what was measured.
    """

    family: str
    path: str
    intensity: float
    tflops: float
    gb_s: float
    gpu: str
    config: Mapping[str, Any]

    @property
    def eight_bits(self) -> bool:
        """Whether tensor cores multiplied bytes, which has a ceiling of its own."""
        return self.config.get("math") in EIGHT_BITS


def points(folder: Path) -> list[Point]:
    """The newest record of every configuration below `folder` that tells of bytes moved.

    Records of kernels that have changed since are left out, those of libraries never.

    Raises
    ------
    ConfigError
        When there is none.
    """
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for record in newest(file):
            rate, moved = record["metrics"].get("tflops", 0), record["metrics"].get("gb_s", 0)
            path = record["config"].get("path", "")
            if moved and (path == LIBRARY or is_current(record)):
                intensity = 1e3 * rate / moved
                found.append(Point(record["bench"], path, intensity, rate, moved, record["gpu"], record["config"]))
    if not any(point.intensity for point in found):
        raise ConfigError(f"{folder}: no record of a kernel's rates; make some with sp kernels bench --record results")
    return found


def roof(found: Sequence[Point]) -> Limits:
    """The limits as measured: the highest bandwidth, and the highest rates in 16 and in eight bits."""
    rates = {kind: [point.tflops for point in found if point.eight_bits is kind] for kind in (False, True)}
    return Limits(max(point.gb_s for point in found), max(rates[False], default=0.0), max(rates[True], default=0.0))


def draw(found: Sequence[Point], path: Path) -> Path:
    """Draw the roofline as a PNG."""
    return save_png(roofline_figure(found), path, dpi=200)


def roofline_figure(found: Sequence[Point]) -> Figure:
    """Rate over intensity: a colour a kernel, a marker a path, the limits as lines."""
    everything, found = found, [point for point in found if point.intensity]
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    draw_roof(axes, found, roof(everything))
    families = sorted({point.family for point in found})
    for family, colour in zip(families, COLOURS * (len(families) // len(COLOURS) + 1), strict=False):
        for kind, marker in MARKERS.items():
            mine = [point for point in found if (point.family, point.path) == (family, kind)]
            axes.scatter(
                [point.intensity for point in mine],
                [point.tflops for point in mine],
                s=26,
                marker=marker,
                linewidths=1.1,
                facecolors=colour if marker in "ox" else "none",
                edgecolors=None if marker == "x" else colour,
                zorder=3,
            )
    colours = dict(zip(families, COLOURS, strict=False))
    handles = [Line2D([], [], marker="o", linestyle="", color=colours.get(name, INK), label=name) for name in families]
    handles += [
        Line2D([], [], marker=MARKERS[kind], linestyle="", color=INK, markerfacecolor=face, label=kind)
        for kind, face in (("sm_90a", INK), ("portable", "none"), (LIBRARY, INK))
        if any(point.path == kind for point in found)
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right center")
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (operations per byte)", ylabel=RATE)
    axes.set_title(found[0].gpu, fontsize=10, color=INK)
    axes.grid(True, which="major", color="#dee2e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_roof(axes: Axes, found: Sequence[Point], limits: Limits) -> None:
    """Slope of the memory, ceilings of the arithmetic, over the intensities found: what was reached, not what a data
    sheet promises. Ceilings are those of the widths that are there."""
    ceilings = [
        (rate, bits)
        for rate, bits, kind in ((limits.tflops, "TFLOP/s", False), (limits.eight_bits, "TOP/s in eight bits", True))
        if rate and any(point.eight_bits is kind for point in found)
    ]
    bandwidth, highest, lowest = limits.gb_s, max(ceilings)[0], min(ceilings)[0]
    low = min(min(point.intensity for point in found) / 2, 1e2 * lowest / bandwidth)
    high = max(max(point.intensity for point in found) * 2, 1e4 * highest / bandwidth)
    for place, (rate, words) in enumerate(ceilings):
        ridge = 1e3 * rate / bandwidth
        x = np.array([low, ridge, high])
        dashes, below = "-" if place == 0 else "--", rate < highest
        axes.plot(x, np.minimum(x * bandwidth / 1e3, rate), color=INK, linewidth=1.2, linestyle=dashes, zorder=2)
        axes.annotate(
            f"{rate:,.0f} {words}, the most reached",
            (high, rate),
            xytext=(-4, -4 if below else 4),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="right",
            va="top" if below else "bottom",
        )
    middle = float(np.sqrt(low * 1e3 * lowest / bandwidth))
    axes.text(
        middle, 1.12 * middle * bandwidth / 1e3, f"{bandwidth:,.0f} GB/s, the most reached", fontsize=8, color=INK,
        ha="center", rotation=float(np.degrees(np.arctan(1.12 * bandwidth / 1e3))), rotation_mode="anchor",
        transform_rotates_text=True,
    )  # fmt: skip
