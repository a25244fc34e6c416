"""One picture a family of kernels: points under the limits of the card, or bars where it only moves bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sp.studies.figures import INK, save_png
from sp.studies.plots.roofline import COLOURS, LIBRARY, MARKERS, RATE, Limits, Point, draw_roof, roof

QUIET = "#adb5bd"
Text = Callable[[Mapping[str, Any]], str]


class View(NamedTuple):
    """What tells the points of a family apart: a colour for `series`, words beside each for `label`.

    With `joined` a line follows a series from size to size.
    """

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
            pictures.append(save_png(family_figure(mine, family, limits), folder / f"roofline-{family}.png", dpi=200))
    return pictures


def family_figure(mine: Sequence[Point], family: str, limits: Limits) -> Figure:
    """The picture of one family.

    `mine`: of that family; `family`: A key of `VIEWS`; `limits`: of the card as measured, see `roof`.
    """
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
    """Whether a record has the keys of its family's cases."""
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
        wide = 3.6 * len(text)
        if any(text == other and abs(x - at) < 16 and abs(y - up) < 24 for other, at, up in seen):
            continue  # the same words stand beside a neighbour
        for dx, dy in ((6, -9), (-6 - wide, 4), (6, 4), (-6 - wide, -9)):
            middle = x + dx + wide / 2, y + dy + 3
            if middle[1] > ceilings[point.eight_bits] - 6:
                continue
            if all(abs(middle[0] - at[0]) > wide / 2 + 3 or abs(middle[1] - at[1]) > 6 for at in taken):
                axes.annotate(
                    text, (point.intensity, point.tflops), xytext=(dx, dy), textcoords="offset points", fontsize=6.5,
                    color=INK, zorder=4,
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
