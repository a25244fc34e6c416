"""Pictures of times to first token: stages as stacked bars, and the memory of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sp.errors import ConfigError
from sp.scoring.base import attending
from sp.session.measured import maths_told, target_alone
from sp.studies.figures import INK, save_png
from sp.studies.tables.lookup import GIB, Record

COLOURS = {
    "tokenise": "#adb5bd",
    "tokenise for drafter": "#868e96",
    "score": "#1c7ed6",
    "select": "#0c8599",
    "compress": "#66d9e8",
    "onload target": "#9c36b5",
    "target prefill": "#f08c00",
    "other": "#ced4da",
}
MOVES = {"offload": "#e03131", "onload": "#9c36b5"}
"""Colours of what a residency does beside the stages."""
SPARE = ("#d6336c", "#e599f7", "#5c940d", "#a9e34b")  # of stages not named above
LONG = 2.5
"""A full prefill longer than so many times the longest other bar gives those a panel of their own, enlarged."""


def draw_stages(records: Sequence[Record], path: Path) -> Path:
    """Draw `ttft` records as bars of stages: one panel a prompt length, a full prefill beside what was compressed.

    All bars of a panel are on one scale, and none is cut; where the full prefill is far longer, a panel beside has the
    others enlarged.

    Raises
    ------
    ConfigError
        When no record has a time.
    """
    timed = [record for record in records if record["metrics"].get("ttft_s")]
    if not timed:
        raise ConfigError("no time to first token to draw; measure some with sp bench ttft")
    lengths = sorted({record["config"]["prompt_tokens"] for record in timed})
    panels = [[r for r in timed if r["config"]["prompt_tokens"] == n] for n in lengths]
    heights = [0.55 + 0.3 * len(panel) for panel in panels]
    columns = 2 if any(enlarged(panel) for panel in panels) else 1
    figure = Figure(figsize=(9.0 + 2.0 * (columns - 1), 0.9 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), columns, squeeze=False, height_ratios=heights)
    colours = stage_colours(timed)
    for line, panel, tokens in zip(grid, panels, lengths, strict=True):
        ordered = sorted(panel, key=lambda r: -r["config"]["keep_ratio"])
        _bars(line[0], ordered, colours)
        line[0].set_title(f"{tokens:,} tokens", fontsize=9, loc="left", color=INK)
        if columns > 1:
            large = enlarged(ordered)
            line[1].set_visible(bool(large))
            if large:
                _bars(line[1], large, colours)
                line[1].set_title("those that were compressed, enlarged", fontsize=9, loc="left", color=INK)
    for column in range(columns):
        last = [axes for axes in grid[:, column] if axes.get_visible()][-1]
        last.set_xlabel("seconds to the first token (median)")
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=min(6, len(handles)), loc="outside lower center")
    return save_png(figure, path, dpi=180)


def draw_memory(records: Sequence[Record], path: Path) -> Path:
    """Draw `ttft_memory` records: bytes in use while one request ran, its stages, and the limit it had.

    Raises
    ------
    ConfigError
        When there is no record with samples.
    """
    seen = [record for record in records if record["samples"]]
    if not seen:
        raise ConfigError("no memory timeline to draw; measure one with sp bench ttft --plots")
    figure = Figure(figsize=(9.0, 0.8 + 2.1 * len(seen)), layout="constrained")
    grid = figure.subplots(len(seen), 1, squeeze=False)[:, 0]
    colours = {name: colour for name, colour in stage_colours(seen).items() if name != "other"}
    for axes, record in zip(grid, seen, strict=True):
        _timeline(axes, record, colours)
    grid[-1].set_xlabel("seconds; memory as the host asked for it, ahead of the device's work")
    handles = [Patch(color=colour, alpha=0.35, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=min(6, len(handles)), loc="outside lower center")
    return save_png(figure, path, dpi=180)


def stage_colours(records: Sequence[Record]) -> dict[str, str]:
    """A colour for every stage that takes at least a thousandth of some request, known stages first."""
    names = dict.fromkeys(
        name
        for record in records
        for name, seconds in record["metrics"]["stages"].items()
        if name != "decode" and seconds >= 1e-3 * record["metrics"]["ttft_s"]
    )
    fresh = [name for name in names if name not in COLOURS]
    found = {name: colour for name, colour in COLOURS.items() if name in names}
    return found | {name: SPARE[i % len(SPARE)] for i, name in enumerate(fresh)}


def label_of(config: Mapping[str, Any]) -> str:
    """What a bar is, in a few words."""
    if config.get("engine"):
        return f"{config['engine']}, full prefill"
    if config["keep_ratio"] == 1:
        return ", ".join(part for part in ("full prefill", maths_told(target_alone(config))) if part)
    limit = config.get("vram") and f"in {config['vram']}"
    parts = [f"keep {config['keep_ratio']:g}", config.get("scorer"), attending(config), maths_told(config), limit]
    return ", ".join(part for part in parts if part)


def enlarged(panel: Sequence[Record]) -> list[Record]:
    """Compressed requests that a far longer full prefill beside them would leave no room; none where it is not."""
    others = [record for record in panel if record["config"]["keep_ratio"] < 1]
    most = max(record["metrics"]["ttft_s"] for record in panel)
    return others if others and most > LONG * max(record["metrics"]["ttft_s"] for record in others) else []


def _bars(axes: Axes, panel: Sequence[Record], colours: Mapping[str, str]) -> None:
    for row, record in enumerate(panel):
        left, total = 0.0, record["metrics"]["ttft_s"]
        for name, colour in colours.items():
            seconds = record["metrics"]["stages"].get(name, 0.0)
            axes.barh(row, seconds, left=left, color=colour, height=0.72)
            left += seconds
        full = record["metrics"].get("full_ttft_s")
        told = f" {total:.3g} s"
        if full and record["config"]["keep_ratio"] < 1:
            told += f", {full / total:.1f}x"
        axes.text(max(total, left), row, told, va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(panel)), [label_of(record["config"]) for record in panel], fontsize=8)
    axes.set_xlim(0, 1.3 * max(record["metrics"]["ttft_s"] for record in panel))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _timeline(axes: Axes, record: Record, colours: Mapping[str, str]) -> None:
    config, start = record["config"], 0.0
    for name, seconds in record["metrics"]["stages"].items():
        if name in colours:
            axes.axvspan(start, start + seconds, color=colours[name], alpha=0.35, linewidth=0)
        start += seconds if name != "other" else 0.0
    x, y = zip(*record["samples"], strict=True)
    x, y = (*x, max(x[-1], start)), (*y, y[-1])
    axes.step(x, [value / GIB for value in y], where="post", color=INK, linewidth=1.0)
    limit = float(config["vram"].removesuffix("g")) if config.get("vram") else None
    peak = record["metrics"]["peak_bytes"] / GIB
    top = 1.2 * max(peak, max(y) / GIB, limit or 0.0)
    above = limit if limit and 0.0 <= limit - peak < 0.1 * top else peak  # no word fits between lines so close
    for height, text, style, at, over, side in (
        (peak, f"peak {peak:.1f} GiB", ":", x[-1], above, "right"),
        (limit, f"limit {limit:g} GiB" if limit else "", "--", 0.0, limit, "left"),
    ):
        if height is not None and over is not None:
            axes.axhline(height, color=INK, linewidth=0.7, linestyle=style)
            axes.text(at, over, text, ha=side, va="bottom", fontsize=8, color=INK)
    for number, move in enumerate(record["metrics"].get("moves", ())):
        colour = MOVES.get(move["kind"], INK)
        axes.axvspan(move["at"], move["at"] + max(move["seconds"], 0.004 * x[-1]), ymax=0.1, color=colour, linewidth=0)
        text = f"{move['kind']} {move['name']}, {move['nbytes'] / GIB:.1f} GiB"
        place = move["at"], 0.12 + 0.1 * (number % 3)  # those that follow each other closely stand one above the other
        axes.annotate(text, place, xycoords=("data", "axes fraction"), fontsize=7, color=colour)
    axes.set_ylim(0, top)
    axes.set_ylabel("GiB in use")
    title = f"{config['prompt_tokens']:,} tokens, {label_of(config)}: first token after"
    axes.set_title(f"{title} {record['metrics']['ttft_s']:.3g} s", fontsize=9, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
