"""Plots of times: stages and memory until the first token, and decoding."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon

from sp.bench.simulate import SIMULATED
from sp.errors import ConfigError
from sp.kernels.machine import machine_slug
from sp.scoring.base import attending
from sp.session.measured import precisions_text, target_alone
from sp.studies.figures import COLOURS, INK, MARKERS, PictureFormat, plain_log, save_figure, series_factor, tidy
from sp.studies.tables.decode_table import SETTING, of_decoding
from sp.studies.tables.lookup import GIB, Record

STAGE_COLOURS = {
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
"""Colours of offloading and onloading by the memory manager, which are drawn in addition to the stages."""
SPARE = ("#d6336c", "#e599f7", "#5c940d", "#a9e34b")  # colours of other stages
SPARE_HATCH = "///"  # of other stages, whose reds and greens look alike with red-green blindness
LONG = 2.5  # a full prefill this many times the longest compressed request adds a panel that enlarges the latter
ROOM = 1.15  # end of a broken bar in that panel, in units of the longest compressed request
BREAK_MARK = "break mark"  # gid of the white gap in a broken bar


def draw_stages(records: Sequence[Record], path: Path) -> Path:
    """Draw `ttft` records as bars of stages, with a panel per prompt length, on one scale that starts at zero.

    If the full prefill takes `LONG` times as long as the slowest compressed request, a second panel enlarges the
    latter. Bars that are longer than this panel are broken by a visible gap, and labelled with their whole time.
    ConfigError if no record has a time.
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
    colours, shared = stage_colours(timed), shared_parts(timed)
    if shared:
        figure.suptitle(f"all but full prefills: {', '.join(shared)}", fontsize=9, color=INK)
    for line, panel, tokens in zip(grid, panels, lengths, strict=True):
        ordered = sorted(panel, key=lambda r: -r["config"]["keep_ratio"])  # the full prefill is on top
        _bars(line[0], ordered, colours, shared)
        line[0].set_title(f"{tokens:,} tokens", fontsize=9, loc="left", color=INK)
        if columns > 1:
            compressed = enlarged(ordered)
            line[1].set_visible(bool(compressed))
            if compressed:
                _bars(line[1], ordered, colours, shared, ROOM * longest(compressed))
                line[1].tick_params(axis="y", left=False, labelleft=False)  # rows are those of the panel on the left
                line[1].set_title("enlarged; bars with a gap are longer", fontsize=9, loc="left", color=INK)
    for column in range(columns):
        last = [axes for axes in grid[:, column] if axes.get_visible()][-1]
        last.set_xlabel("seconds to the first token (median)")
    handles = [
        Patch(facecolor=colour, edgecolor="white", hatch=hatch_of(name), label=name) for name, colour in colours.items()
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=min(6, len(handles)), loc="outside lower center")
    return save_figure(figure, path, dpi=180)


def draw_memory(records: Sequence[Record], path: Path) -> Path:
    """Draw `ttft_memory` records: bytes in use during a request, its stages, and the limit of GPU memory.

    ConfigError if no record has samples.
    """
    sampled = [record for record in records if record["samples"]]
    if not sampled:
        raise ConfigError("no memory timeline to draw; measure one with sp bench ttft --plots")
    figure = Figure(figsize=(9.0, 0.8 + 2.1 * len(sampled)), layout="constrained")
    grid = figure.subplots(len(sampled), 1, squeeze=False)[:, 0]
    colours = {name: colour for name, colour in stage_colours(sampled).items() if name != "other"}
    for axes, record in zip(grid, sampled, strict=True):
        _timeline(axes, record, colours)
    grid[-1].set_xlabel("seconds; allocations by host time, which is ahead of the GPU")
    handles = [Patch(color=colour, alpha=0.35, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=min(6, len(handles)), loc="outside lower center")
    return save_figure(figure, path, dpi=180)


def stage_colours(records: Sequence[Record]) -> dict[str, str]:
    """Return a colour for every stage that takes at least a thousandth of some request, known stages first."""
    names = dict.fromkeys(
        name
        for record in records
        for name, seconds in record["metrics"]["stages"].items()
        if name != "decode" and seconds >= 1e-3 * record["metrics"]["ttft_s"]
    )
    others = [name for name in names if name not in STAGE_COLOURS]
    known = {name: colour for name, colour in STAGE_COLOURS.items() if name in names}
    return known | {name: SPARE[i % len(SPARE)] for i, name in enumerate(others)}


def label_parts(config: Mapping[str, Any]) -> list[str]:
    """Return the parts of a bar's label: engine, keep ratio, scorer, precision and memory limit."""
    if config.get("engine"):
        return [config["engine"], "full prefill"]
    if config["keep_ratio"] == 1:
        return [part for part in ("full prefill", precisions_text(target_alone(config))) if part]
    limit = config.get("vram") and f"in {config['vram']}"
    parts = [f"keep {config['keep_ratio']:g}", config.get("scorer"), attending(config), precisions_text(config), limit]
    return [part for part in parts if part]


def hatch_of(stage: str) -> str:
    """Return the hatch of a stage's bar, which is empty for the stages of `STAGE_COLOURS`."""
    return "" if stage in STAGE_COLOURS else SPARE_HATCH


def longest(panel: Sequence[Record]) -> float:
    """Return the largest time to first token among records, in seconds."""
    return max(float(record["metrics"]["ttft_s"]) for record in panel)


def enlarged(panel: Sequence[Record]) -> list[Record]:
    """Return the compressed requests if the full prefill takes more than `LONG` times as long, else an empty list."""
    compressed = [record for record in panel if record["config"]["keep_ratio"] < 1]
    return compressed if compressed and longest(panel) > LONG * longest(compressed) else []


def shared_parts(records: Sequence[Record]) -> list[str]:
    """Return the parts that the labels of all compressed records have; none for a single record."""
    labels = [label_parts(record["config"]) for record in records if record["config"]["keep_ratio"] < 1]
    return [part for part in labels[0] if all(part in label for label in labels)] if len(labels) > 1 else []


def _bars(
    axes: Axes, panel: Sequence[Record], colours: Mapping[str, str], shared: Sequence[str], room: float | None = None
) -> None:
    """Draw one bar per record. A bar longer than `room`, in seconds, is broken there; None breaks none.

    Parts of labels that are in `shared` are omitted, except of full prefills.
    """
    room = longest(panel) if room is None else room
    for row, record in enumerate(panel):
        end, total = 0.0, record["metrics"]["ttft_s"]
        broken = total > room
        for name, colour in colours.items():
            seconds = record["metrics"]["stages"].get(name, 0.0)
            seconds = min(seconds, room - end) if broken else seconds  # stages beyond the break have no width
            axes.barh(
                row, seconds, left=end, facecolor=colour, edgecolor="white", hatch=hatch_of(name), linewidth=0,
                height=0.72,
            )  # fmt: skip
            end += seconds
        if broken:
            _break_mark(axes, row, room)
        full = record["metrics"].get("full_ttft_s")
        label = f" {total:.3g} s"
        if full and record["config"]["keep_ratio"] < 1:
            label += f", {full / total:.1f}x"
        axes.text(end if broken else max(total, end), row, label, va="center", fontsize=8, color=INK)
    labels = []
    for record in panel:
        parts, compressed = label_parts(record["config"]), record["config"]["keep_ratio"] < 1
        own = [part for part in parts if not (compressed and part in shared)]
        labels.append(", ".join(own or parts[:1]))  # a row that has no setting of its own is named by its keep ratio
    axes.set_yticks(range(len(panel)), labels, fontsize=8)
    axes.set_xlim(0, 1.4 * min(room, longest(panel)))  # room for the text after the longest bar
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def _break_mark(axes: Axes, row: int, end: float) -> None:
    """Cut a slanted white gap with dark edges through the bar of a row, shortly before its end."""
    start, width, slant, half_height = 0.9 * end, 0.02 * end, 0.02 * end, 0.44
    edges = [((x, x + slant), (row + half_height, row - half_height)) for x in (start, start + width)]
    (x1, y1), (x2, y2) = edges
    gap = Polygon(
        [(x1[0], y1[0]), (x1[1], y1[1]), (x2[1], y2[1]), (x2[0], y2[0])], facecolor="white", zorder=4, gid=BREAK_MARK
    )
    axes.add_patch(gap)
    for x, y in edges:
        axes.plot(x, y, color=INK, linewidth=1.2, zorder=5)


def _timeline(axes: Axes, record: Record, colours: Mapping[str, str]) -> None:
    config, start = record["config"], 0.0
    for name, seconds in record["metrics"]["stages"].items():
        if name in colours:
            axes.axvspan(start, start + seconds, color=colours[name], alpha=0.35, linewidth=0)
        start += seconds if name != "other" else 0.0  # the rest of the total, which is between the stages
    x, y = zip(*record["samples"], strict=True)
    x, y = (*x, max(x[-1], start)), (*y, y[-1])  # the last sample holds until the end of the stages
    axes.step(x, [value / GIB for value in y], where="post", color=INK, linewidth=1.0)
    limit = float(config["vram"].removesuffix("g")) if config.get("vram") else None
    peak = record["metrics"]["peak_bytes"] / GIB
    top = 1.2 * max(peak, max(y) / GIB, limit or 0.0)
    above = limit if limit and 0.0 <= limit - peak < 0.1 * top else peak  # lines so close leave no room for a text
    for height, text, style, text_x, text_y, side in (
        (peak, f"peak {peak:.1f} GiB", ":", x[-1], above, "right"),
        (limit, f"limit {limit:g} GiB" if limit else "", "--", 0.0, limit, "left"),
    ):
        if height is not None and text_y is not None:
            axes.axhline(height, color=INK, linewidth=0.7, linestyle=style)
            axes.text(text_x, text_y, text, ha=side, va="bottom", fontsize=8, color=INK)
    for number, move in enumerate(record["metrics"].get("moves", ())):
        colour = MOVES.get(move["kind"], INK)
        axes.axvspan(move["at"], move["at"] + max(move["seconds"], 0.004 * x[-1]), ymax=0.1, color=colour, linewidth=0)
        text = f"{move['kind']} {move['name']}, {move['nbytes'] / GIB:.1f} GiB"
        # In turn at three heights, so that the texts of moves at nearly the same time do not overlap.
        place = move["at"], 0.12 + 0.1 * (number % 3)
        axes.annotate(text, place, xycoords=("data", "axes fraction"), fontsize=7, color=colour)
    axes.set_ylim(0, top)
    axes.set_ylabel("GiB in use")
    title = f"{config['prompt_tokens']:,} tokens, {', '.join(label_parts(config))}: first token after"
    axes.set_title(f"{title} {record['metrics']['ttft_s']:.3g} s", fontsize=9, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)


NAMES = {"dflash": "chain (dflash)", "ddtree": "tree (ddtree)"}  # labels of decoding methods


def draw_decoding(records: Sequence[Record], folder: Path, picture: PictureFormat = "png") -> Iterator[Path]:
    """Write a picture per machine, pair, setting and kind of acceptance: ``decode-<target>[-simulated].png``.

    Where several would have the same name, the settings in which they differ are added to it. Greedy decoding is a
    horizontal line; simulated lines are dashed.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in of_decoding(records):
        config = record["config"]
        if config["method"] != "greedy":
            name = f"decode-{_slug(Path(config['model']).stem)}" + "-simulated" * (config["mode"] == SIMULATED)
            groups[name, machine_slug(record), *(str(config[key]) for key in ("draft", *SETTING))].append(record)
    folder.mkdir(parents=True, exist_ok=True)
    for (name, *settings), group in sorted(groups.items()):
        # The name of a file gets only those settings in which groups of the same name differ.
        alike = [key[1:] for key in groups if key[0] == name]
        differing = [_slug(part) for i, part in enumerate(settings) if len({other[i] for other in alike}) > 1]
        yield save_figure(figure_of(group), folder / f"{'-'.join([name, *differing])}.{picture}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())


def figure_of(records: Sequence[Record]) -> Figure:
    """Draw tokens per pass, tokens per second and, if acceptance is real, tokens per pass by task."""
    config = records[0]["config"]
    simulated = config["mode"] == SIMULATED
    tasks = [] if simulated else list(dict.fromkeys(t for r in records for t in r["metrics"]["by_task"]))
    panels = 3 if tasks else 2
    figure = Figure(figsize=(4.4 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels)
    lines: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        lines[record["config"]["method"], record["config"].get("acceptance", "")].append(record)
    for number, ((method, acceptance), line) in enumerate(lines.items()):
        label = NAMES.get(method, method) + (f", {acceptance}" if acceptance else "")
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": label}
        look |= {"linestyle": "--", "markerfacecolor": "none"} if acceptance else {}
        factor = series_factor(number, len(lines))
        _line(axes[0], line, "acceptance_length", "acceptance_low", "acceptance_high", look, factor)
        _line(axes[1], line, "tok_s", "tok_s_low", "tok_s_high", look, factor)
    axes[0].axhline(1, color=INK, linewidth=0.9, linestyle=":")
    greedy = records[0]["metrics"]["greedy_tok_s"]
    axes[1].axhline(greedy, color=INK, linewidth=0.9, linestyle=":", label=f"greedy, {greedy:.0f} tok/s")
    for number, task in enumerate(tasks):
        line = [
            {**r, "metrics": _tasks(r)[task]}
            for r in records
            if r["config"]["method"] == "ddtree" and task in _tasks(r)
        ]
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": task}
        factor = series_factor(number, len(tasks))
        _line(axes[2], line, "acceptance_length", "acceptance_low", "acceptance_high", look, factor)
    titles = ["tokens per pass", "tokens per second", "tokens per pass by task, tree"]
    for panel, title in zip(axes, titles, strict=False):
        panel.set_title(f"{title} ({SIMULATED})" if simulated else title, fontsize=9, loc="left", color=INK)
        panel.set_xlabel("draft tokens per pass (budget; shifted slightly)", fontsize=8)
        panel.set_ylim(bottom=0)
        plain_log(panel, sorted({r["config"]["budget"] for r in records}))
        tidy(panel)
    if tasks:  # room for the legend above the lines
        axes[2].set_ylim(top=1.4 * axes[2].get_ylim()[1])
        axes[2].legend(fontsize=7, frameon=False, ncols=2, loc="upper left")
    handles, labels = axes[1].get_legend_handles_labels()
    legend_title = {"title": SIMULATED, "title_fontsize": 7.5} if simulated else {}
    figure.legend(handles, labels, fontsize=7.5, frameon=False, ncols=3, loc="outside lower center", **legend_title)
    where = records[0].get("gpu") or records[0]["cpu"]
    figure.suptitle(
        f"{config['model']} with {config['draft']}, {config['context']:,} tokens of context, {where}"
        "; bars: 95 % bootstrap", fontsize=9,
    )  # fmt: skip
    return figure


def _tasks(record: Record) -> Mapping[str, Any]:
    by_task: Mapping[str, Any] = record["metrics"]["by_task"]
    return by_task


def _line(
    axes: Axes, records: Sequence[Record], name: str, low: str, high: str, look: Mapping[str, Any], factor: float
) -> None:
    """Draw a line with intervals by budget. `factor` shifts it in x, so that equal lines do not cover each other."""
    ordered = sorted(records, key=lambda r: r["config"]["budget"])
    x = [factor * r["config"]["budget"] for r in ordered]
    y = [r["metrics"][name] for r in ordered]
    below = [max(0.0, r["metrics"][name] - r["metrics"][low]) for r in ordered]
    above = [max(0.0, r["metrics"][high] - r["metrics"][name]) for r in ordered]
    axes.errorbar(x, y, [below, above], linewidth=1.2, markersize=4, capsize=2, elinewidth=0.8, **look)
