"""Roofline plots of recorded kernels: arithmetic rate over intensity, below the measured limits of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sp.bench.record import is_current, newest
from sp.errors import ConfigError
from sp.studies.figures import INK, SMALLEST, save_figure

COLOURS = ("#1c7ed6", "#f08c00", "#2f9e44", "#9c36b5", "#e03131", "#0c8599", "#846358", "#495057")
LIBRARY = "cublas"
MARKERS = {"sm_90a": "o", "portable": "s", LIBRARY: "x"}
EIGHT_BITS = ("int8", "fp8")
RATE = "TFLOP/s (int8: TOP/s)"


class RoofLimits(NamedTuple):
    """Highest measured rates: GB/s, TFLOP/s of 16-bit or wider operands, and of int8 or fp8 (0 without a record)."""

    gb_s: float
    tflops: float
    eight_bits: float


@dataclass(frozen=True)
class Point:
    """A measured kernel.

    `family` is its bench; `intensity` the operations per byte that must be moved, 0 for a copy, which is not drawn but
    gives the bandwidth; `tflops` and `gb_s` are from the median time.
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
        """True if tensor cores multiplied 8-bit operands, which have a ceiling of their own."""
        return self.config.get("math") in EIGHT_BITS


def points(folder: Path) -> list[Point]:
    """Return the newest record in `folder` of every configuration with a bandwidth.

    Records of kernels that have changed since are omitted, unless they are of a library. ConfigError if there is none.
    """
    measured = []
    for file in sorted(folder.glob("*.jsonl")):
        for record in newest(file):
            rate, bandwidth = record["metrics"].get("tflops", 0), record["metrics"].get("gb_s", 0)
            path = record["config"].get("path", "")
            if bandwidth and (path == LIBRARY or is_current(record)):
                intensity = 1e3 * rate / bandwidth
                measured.append(
                    Point(record["bench"], path, intensity, rate, bandwidth, record["gpu"], record["config"])
                )
    if not any(point.intensity for point in measured):
        raise ConfigError(f"{folder}: no record of a kernel's rates; make some with sp kernels bench --record results")
    return measured


def roof(measured: Sequence[Point]) -> RoofLimits:
    """Return the highest measured bandwidth, and the highest rates of 16-bit and of 8-bit operands."""
    rates = {kind: [point.tflops for point in measured if point.eight_bits is kind] for kind in (False, True)}
    return RoofLimits(
        max(point.gb_s for point in measured), max(rates[False], default=0.0), max(rates[True], default=0.0)
    )


def draw(measured: Sequence[Point], path: Path) -> Path:
    """Write the roofline as a PNG, and return its path."""
    return save_figure(roofline_figure(measured), path, dpi=200)


def roofline_figure(measured: Sequence[Point]) -> Figure:
    """Draw rate over intensity: a colour per family, a marker per kernel path, and the limits as lines."""
    with_copies, measured = measured, [point for point in measured if point.intensity]
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    draw_roof(axes, measured, roof(with_copies))
    families = sorted({point.family for point in measured})
    for family, colour in zip(families, COLOURS * (len(families) // len(COLOURS) + 1), strict=False):
        for kind, marker in MARKERS.items():
            series = [point for point in measured if (point.family, point.path) == (family, kind)]
            axes.scatter(
                [point.intensity for point in series],
                [point.tflops for point in series],
                s=26,
                marker=marker,
                linewidths=1.1,
                facecolors=colour if marker in "ox" else "none",
                edgecolors=None if marker == "x" else colour,
                zorder=3,
            )
    # More than eight families share colours; the legend shows those beyond in ink.
    colours = dict(zip(families, COLOURS, strict=False))
    handles = [Line2D([], [], marker="o", linestyle="", color=colours.get(name, INK), label=name) for name in families]
    handles += [
        Line2D([], [], marker=MARKERS[kind], linestyle="", color=INK, markerfacecolor=face, label=kind)
        for kind, face in (("sm_90a", INK), ("portable", "none"), (LIBRARY, INK))
        if any(point.path == kind for point in measured)
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right center")
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (operations per byte)", ylabel=RATE)
    axes.set_title(measured[0].gpu, fontsize=10, color=INK)
    axes.grid(True, which="major", color="#dee2e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_roof(axes: Axes, measured: Sequence[Point], limits: RoofLimits) -> None:
    """Draw the slope of memory bandwidth and the ceilings of arithmetic, over the intensities of the points.

    They are measured, not those of a data sheet. There is a ceiling for each width of operands that has a point.
    """
    ceilings = [
        (rate, bits)
        for rate, bits, kind in ((limits.tflops, "TFLOP/s", False), (limits.eight_bits, "TOP/s in 8 bits", True))
        if rate and any(point.eight_bits is kind for point in measured)
    ]
    bandwidth, highest, lowest = limits.gb_s, max(ceilings)[0], min(ceilings)[0]
    # A ridge is at 1e3 * rate / bandwidth operations per byte (TFLOP/s over GB/s); the axis begins a decade before
    # the first one and ends a decade after the last.
    low = min(min(point.intensity for point in measured) / 2, 1e2 * lowest / bandwidth)
    high = max(max(point.intensity for point in measured) * 2, 1e4 * highest / bandwidth)
    for place, (rate, words) in enumerate(ceilings):
        ridge = 1e3 * rate / bandwidth
        x = np.array([low, ridge, high])
        dashes, below = "-" if place == 0 else "--", rate < highest
        axes.plot(x, np.minimum(x * bandwidth / 1e3, rate), color=INK, linewidth=1.2, linestyle=dashes, zorder=2)
        axes.annotate(
            f"{rate:,.0f} {words}, highest measured",
            (high, rate),
            xytext=(-4, -4 if below else 4),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="right",
            va="top" if below else "bottom",
        )
    middle = float(np.sqrt(low * 1e3 * lowest / bandwidth))  # halfway up the slope on a logarithmic axis
    axes.text(
        middle, 1.12 * middle * bandwidth / 1e3, f"{bandwidth:,.0f} GB/s, highest measured", fontsize=8, color=INK,
        ha="center", rotation=float(np.degrees(np.arctan(1.12 * bandwidth / 1e3))), rotation_mode="anchor",
        transform_rotates_text=True,
    )  # fmt: skip


QUIET = "#adb5bd"
Text = Callable[[Mapping[str, Any]], str]


class FamilyView(NamedTuple):
    """Distinction of the points of a family: a colour for each `series`, and a text next to each point, its `label`.

    If `joined`, a line connects the points of a series.
    """

    series: Text
    label: Text
    joined: bool = False


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


VIEWS: dict[str, FamilyView] = {
    "project": FamilyView(lambda c: str(c["type"]), lambda c: _short(c["m"]), joined=True),
    "matmul_bytes": FamilyView(
        lambda c: f"{c['math']}, narrow" if "narrow" in c.get("kernel", "") else str(c["math"]),
        lambda c: f"{c['epilogue'].replace('_', ' ')}, {c['k']} in",
    ),
    "byte_attention": FamilyView(
        lambda c: f"{c['math']}, heads of {c['head_dim']}", lambda c: f"{c['read']:.0%} of {_short(c['tokens'])}"
    ),
    "experts": FamilyView(lambda c: str(c["part"]), lambda c: _short(c["tokens"]), joined=True),
    "paged_attention": FamilyView(
        lambda c: f"head dim {c['head_dim']}", lambda c: f"{_short(c['rows'])} of {_short(c['tokens'])}"
    ),
    "delta": FamilyView(lambda c: "Gated DeltaNet", lambda c: _short(c["tokens"]), joined=True),
    "flashprefill": FamilyView(lambda c: str(c["stage"]), lambda c: f"{c['selector']}, d {c['head_dim']}"),
    "importance": FamilyView(lambda c: f"head dim {c['head_dim']}", lambda c: _short(c["tokens"])),
    "rows": FamilyView(lambda c: str(c["op"]), lambda c: f"{c['rows']} rows"),
    "memory": FamilyView(lambda c: "copy", lambda c: f"{c['copy'] >> 20} MiB"),
}
WORDS = {
    "project": "matrix products, by rows of x",
    "matmul_bytes": "8-bit matrix products, compared with BF16",
    "byte_attention": "8-bit attention, by share of key blocks read",
    "experts": "MoE feed-forward and its matrix products, by tokens",
    "paged_attention": "paged attention, by number of queries and keys",
    "delta": "recurrent mixer, by tokens",
    "flashprefill": "one layer of sparse prefill, by stage",
    "importance": "importance, by keys",
    "rows": "row operations",
    "memory": "device memory",
}


def draw_families(measured: Sequence[Point], folder: Path) -> list[Path]:
    """Write ``roofline-<family>.png`` for every recorded family of `VIEWS`, and return the paths."""
    limits, pictures = roof(measured), []
    for family, view in VIEWS.items():
        of_family = [point for point in measured if point.family == family and _fits(view, point)]
        if of_family:
            pictures.append(
                save_figure(family_figure(of_family, family, limits), folder / f"roofline-{family}.png", dpi=200)
            )
    return pictures


def family_figure(of_family: Sequence[Point], family: str, limits: RoofLimits) -> Figure:
    """Draw the points `of_family`. `family`: a key of `VIEWS`; `limits`: measured limits of the GPU (`roof`)."""
    computes = any(point.intensity for point in of_family)
    figure = Figure(figsize=(6.4, 4.2) if computes else (6.4, 0.9 + 0.34 * len(of_family)), layout="constrained")
    axes = figure.subplots()
    if computes:
        _points(axes, [point for point in of_family if point.intensity], VIEWS[family], limits)
    else:
        _bars(axes, of_family, VIEWS[family], limits.gb_s)
    axes.set_title(f"{of_family[0].gpu}: {WORDS[family]}", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _fits(view: FamilyView, point: Point) -> bool:
    try:
        return bool(view.series(point.config) and view.label(point.config))
    except KeyError:
        return False


def _points(axes: Axes, of_family: Sequence[Point], view: FamilyView, limits: RoofLimits) -> None:
    axes.set(xscale="log", yscale="log")
    draw_roof(axes, of_family, limits)
    names = list(dict.fromkeys(view.series(point.config) for point in of_family))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in of_family:
        lines.setdefault((view.series(point.config), point.path), []).append(point)
    for (name, path), line in lines.items():
        line.sort(key=lambda point: point.intensity)
        x, y = [point.intensity for point in line], [point.tflops for point in line]
        face = "none" if MARKERS.get(path) == "s" else colours[name]
        style: dict[str, Any] = {
            "markersize": 5,
            "linewidth": 0.8 if view.joined else 0,
            "color": colours[name],
            "markerfacecolor": face,
        }
        axes.plot(x, y, marker=MARKERS.get(path, "^"), alpha=0.9, zorder=3, **style)
    _labels(axes, of_family, view, limits)
    handles = [Line2D([], [], color=colours[name], linewidth=2, label=name) for name in names]
    handles += [
        Line2D([], [], marker=MARKERS[path], linestyle="", color=INK, markerfacecolor=face, label=path)
        for path, face in (("sm_90a", INK), ("portable", "none"), (LIBRARY, INK))
        if any(point.path == path for point in of_family)
    ]
    axes.legend(handles=handles, fontsize=7.5, frameon=False, loc="lower right")
    axes.set(xlabel="arithmetic intensity (operations per byte that must be moved)", ylabel=RATE)
    axes.grid(True, which="major", color="#dee2e6", linewidth=0.6)


def _labels(axes: Axes, of_family: Sequence[Point], view: FamilyView, limits: RoofLimits) -> None:
    """Write labels next to the points; a point gets none where it would cover another label, a point or the ceiling."""
    axes.autoscale_view()
    pixels = 72 / axes.figure.dpi  # typographic points per pixel
    occupied = [tuple(axes.transData.transform((p.intensity, p.tflops)) * pixels) for p in of_family]
    ceilings = [axes.transData.transform((1.0, rate or 1.0))[1] * pixels for rate in limits[1:]]
    placed: set[tuple[str, float, float]] = set()
    for point in sorted(of_family, key=lambda point: -point.tflops):
        text = view.label(point.config)
        x, y = axes.transData.transform((point.intensity, point.tflops)) * pixels
        width = 3.9 * len(text)  # about that of the label in points, at the smallest font
        if any(text == other and abs(x - left) < 16 and abs(y - low) < 24 for other, left, low in placed):
            continue  # a neighbour has the same label
        for dx, dy in ((6, -9), (-6 - width, 4), (6, 4), (-6 - width, -9)):
            middle = x + dx + width / 2, y + dy + 3
            if middle[1] > ceilings[point.eight_bits] - 6:  # would cover the line of its ceiling
                continue
            if all(abs(middle[0] - p[0]) > width / 2 + 3 or abs(middle[1] - p[1]) > 6 for p in occupied):
                axes.annotate(
                    text, (point.intensity, point.tflops), xytext=(dx, dy), textcoords="offset points",
                    fontsize=SMALLEST, color=INK, zorder=4,
                )  # fmt: skip
                # Three places represent the label's width, as the test above is for the middle of the next one.
                occupied += [(middle[0] + part * width / 2, middle[1]) for part in (-0.7, 0.0, 0.7)]
                placed.add((text, float(x), float(y)))
                break


def _bars(axes: Axes, of_family: Sequence[Point], view: FamilyView, bandwidth: float) -> None:
    names = [f"{view.series(point.config)}, {view.label(point.config)}" for point in of_family]
    places = range(len(of_family))
    axes.barh(list(places), [point.gb_s for point in of_family], height=0.6, color=COLOURS[0])
    axes.set_yticks(list(places), names, fontsize=8)
    axes.invert_yaxis()
    for place, point in zip(places, of_family, strict=True):
        axes.annotate(
            f"{point.gb_s:,.0f}", (0, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=7.5, color="white",
        )  # fmt: skip
    axes.axvline(bandwidth, color=QUIET, linewidth=1.0, linestyle="--")
    axes.set_xlim(0, bandwidth * 1.15)
    axes.set_xlabel(f"GB/s (dashed: highest measured, {bandwidth:,.0f})")
