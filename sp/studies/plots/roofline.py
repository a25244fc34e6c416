"""Roofline of recorded kernels: arithmetic rate over arithmetic intensity, under the measured limits of their GPU."""

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


class Limits(NamedTuple):
    """What anything reached: GB/s, TFLOP/s in 16 bits or more, and in int8 or fp8 (0 where nothing was recorded)."""

    gb_s: float
    tflops: float
    eight_bits: float


@dataclass(frozen=True)
class Point:
    """One measured kernel. `family`: the bench it was recorded by; `intensity`: operations for each byte that must be
    moved; 0 for a copy, which is not drawn but shows the bandwidth; `tflops`, `gb_s`: by the median time."""

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
    """The newest record of every configuration below `folder` that tells of bytes moved. Records of kernels that have
    changed since are left out, those of libraries never. ConfigError when there is none."""
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
    """The limits as measured: the highest bandwidth, and the highest rates in 16 and in 8 bits."""
    rates = {kind: [point.tflops for point in found if point.eight_bits is kind] for kind in (False, True)}
    return Limits(max(point.gb_s for point in found), max(rates[False], default=0.0), max(rates[True], default=0.0))


def draw(found: Sequence[Point], path: Path) -> Path:
    """Draw the roofline as a PNG."""
    return save_figure(roofline_figure(found), path, dpi=200)


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


QUIET = "#adb5bd"
Text = Callable[[Mapping[str, Any]], str]


class View(NamedTuple):
    """What tells the points of a family apart: a colour for `series`, words beside each for `label`. With `joined` a
    line follows a series from size to size."""

    series: Text
    label: Text
    joined: bool = False


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


VIEWS: dict[str, View] = {
    "project": View(lambda c: str(c["type"]), lambda c: _short(c["m"]), joined=True),
    "matmul_bytes": View(
        lambda c: f"{c['math']}, few inputs" if "narrow" in c.get("kernel", "") else str(c["math"]),
        lambda c: f"{c['epilogue'].replace('_', ' ')}, {c['k']} in",
    ),
    "byte_attention": View(lambda c: f"keys and values in {c['math']}", lambda c: f"{c['read']:.0%}"),
    "experts": View(lambda c: str(c["part"]), lambda c: _short(c["tokens"]), joined=True),
    "paged_attention": View(
        lambda c: f"head dim {c['head_dim']}", lambda c: f"{_short(c['rows'])} of {_short(c['tokens'])}"
    ),
    "delta": View(lambda c: "Gated DeltaNet", lambda c: _short(c["tokens"]), joined=True),
    "flashprefill": View(lambda c: str(c["stage"]), lambda c: f"{c['selector']}, d {c['head_dim']}"),
    "importance": View(lambda c: f"head dim {c['head_dim']}", lambda c: _short(c["tokens"])),
    "rows": View(lambda c: str(c["op"]), lambda c: f"{c['rows']} rows"),
    "memory": View(lambda c: "copy", lambda c: f"{c['copy'] >> 20} MiB"),
}
WORDS = {
    "project": "matrix products, by rows of x",
    "matmul_bytes": "products of bytes beside those in BF16",
    "byte_attention": "attention in eight bits, by share of blocks read",
    "experts": "a mixture's feed-forward and its products, by tokens",
    "paged_attention": "attention, queries of keys",
    "delta": "recurrent mixer, by tokens",
    "flashprefill": "one layer of sparse prefill, by stage",
    "importance": "importance, by keys",
    "rows": "row operations",
    "memory": "device memory",
}


def draw_families(found: Sequence[Point], folder: Path) -> list[Path]:
    """Write ``roofline-<family>.png`` for every family that has a `View` and was recorded."""
    limits, pictures = roof(found), []
    for family, view in VIEWS.items():
        mine = [point for point in found if point.family == family and _fits(view, point)]
        if mine:
            pictures.append(
                save_figure(family_figure(mine, family, limits), folder / f"roofline-{family}.png", dpi=200)
            )
    return pictures


def family_figure(mine: Sequence[Point], family: str, limits: Limits) -> Figure:
    """The picture of one family. `mine`: of that family; `family`: A key of `VIEWS`; `limits`: of the GPU as measured,
    see `roof`."""
    computes = any(point.intensity for point in mine)
    figure = Figure(figsize=(6.4, 4.2) if computes else (6.4, 0.9 + 0.34 * len(mine)), layout="constrained")
    axes = figure.subplots()
    if computes:
        _points(axes, [point for point in mine if point.intensity], VIEWS[family], limits)
    else:
        _bars(axes, mine, VIEWS[family], limits.gb_s)
    axes.set_title(f"{mine[0].gpu}: {WORDS[family]}", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _fits(view: View, point: Point) -> bool:
    try:
        return bool(view.series(point.config) and view.label(point.config))
    except KeyError:
        return False


def _points(axes: Axes, mine: Sequence[Point], view: View, limits: Limits) -> None:
    axes.set(xscale="log", yscale="log")
    draw_roof(axes, mine, limits)
    names = list(dict.fromkeys(view.series(point.config) for point in mine))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in mine:
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
    _labels(axes, mine, view, limits)
    handles = [Line2D([], [], color=colours[name], linewidth=2, label=name) for name in names]
    handles += [
        Line2D([], [], marker=MARKERS[path], linestyle="", color=INK, markerfacecolor=face, label=path)
        for path, face in (("sm_90a", INK), ("portable", "none"), (LIBRARY, INK))
        if any(point.path == path for point in mine)
    ]
    axes.legend(handles=handles, fontsize=7.5, frameon=False, loc="lower right")
    axes.set(xlabel="arithmetic intensity (operations per byte that must be moved)", ylabel=RATE)
    axes.grid(True, which="major", color="#dee2e6", linewidth=0.6)


def _labels(axes: Axes, mine: Sequence[Point], view: View, limits: Limits) -> None:
    """Words beside the points, where neither another's words nor another point nor their ceiling lie; else none."""
    axes.autoscale_view()
    pixels = 72 / axes.figure.dpi  # points a pixel
    taken = [tuple(axes.transData.transform((p.intensity, p.tflops)) * pixels) for p in mine]
    ceilings = [axes.transData.transform((1.0, rate or 1.0))[1] * pixels for rate in limits[1:]]
    seen: set[tuple[str, float, float]] = set()
    for point in sorted(mine, key=lambda point: -point.tflops):
        text = view.label(point.config)
        x, y = axes.transData.transform((point.intensity, point.tflops)) * pixels
        wide = 3.9 * len(text)
        if any(text == other and abs(x - at) < 16 and abs(y - up) < 24 for other, at, up in seen):
            continue  # the same words stand beside a neighbour
        for dx, dy in ((6, -9), (-6 - wide, 4), (6, 4), (-6 - wide, -9)):
            middle = x + dx + wide / 2, y + dy + 3
            if middle[1] > ceilings[point.eight_bits] - 6:
                continue
            if all(abs(middle[0] - at[0]) > wide / 2 + 3 or abs(middle[1] - at[1]) > 6 for at in taken):
                axes.annotate(
                    text, (point.intensity, point.tflops), xytext=(dx, dy), textcoords="offset points",
                    fontsize=SMALLEST, color=INK, zorder=4,
                )  # fmt: skip
                taken += [(middle[0] + part * wide / 2, middle[1]) for part in (-0.7, 0.0, 0.7)]
                seen.add((text, float(x), float(y)))
                break


def _bars(axes: Axes, mine: Sequence[Point], view: View, bandwidth: float) -> None:
    names = [f"{view.series(point.config)}, {view.label(point.config)}" for point in mine]
    places = range(len(mine))
    axes.barh(list(places), [point.gb_s for point in mine], height=0.6, color=COLOURS[0])
    axes.set_yticks(list(places), names, fontsize=8)
    axes.invert_yaxis()
    for place, point in zip(places, mine, strict=True):
        axes.annotate(
            f"{point.gb_s:,.0f}", (0, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=7.5, color="white",
        )  # fmt: skip
    axes.axvline(bandwidth, color=QUIET, linewidth=1.0, linestyle="--")
    axes.set_xlim(0, bandwidth * 1.15)
    axes.set_xlabel(f"GB/s (dashed: the most anything reached, {bandwidth:,.0f})")
