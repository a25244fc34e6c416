"""Pictures of decoding with a draft: tokens a pass and tokens a second over the budget of guesses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sp.bench.simulate import SIMULATED
from sp.kernels.machine import machine_slug
from sp.studies.figures import INK, save_png
from sp.studies.style import COLOURS, MARKERS, apart, plain_log, tidy
from sp.studies.tables.decode_table import SETTING, of_decoding
from sp.studies.tables.lookup import Record

NAMES = {"dflash": "chain (dflash)", "ddtree": "tree (ddtree)"}


def draw_decoding(records: Sequence[Record], folder: Path) -> Iterator[Path]:
    """One picture a machine, pair, setting and kind of acceptance: ``decode-<target>[-simulated].png``.

    Where several would have that name, the machines, drafts and settings that tell them apart are added. Greedy
    decoding of the same run is a line across. Simulated acceptance has a picture of its own that says so, and dashed
    lines.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in of_decoding(records):
        config = record["config"]
        if config["method"] != "greedy":
            name = f"decode-{_slug(Path(config['model']).stem)}" + "-simulated" * (config["mode"] == SIMULATED)
            groups[name, machine_slug(record), *(str(config[key]) for key in ("draft", *SETTING))].append(record)
    folder.mkdir(parents=True, exist_ok=True)
    for (name, *how), group in sorted(groups.items()):
        alike = [key[1:] for key in groups if key[0] == name]
        apart = [_slug(part) for i, part in enumerate(how) if len({other[i] for other in alike}) > 1]
        yield save_png(figure_of(group), folder / f"{'-'.join([name, *apart])}.png")


def _slug(text: str) -> str:
    """Letters, digits and points of a text, fit for a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())


def figure_of(records: Sequence[Record]) -> Figure:
    """Tokens a pass, tokens a second and, of real acceptance, tokens a pass by task."""
    config = records[0]["config"]
    simulated = config["mode"] == SIMULATED
    tasks = [] if simulated else list(dict.fromkeys(t for r in records for t in r["metrics"]["by_task"]))
    panels = 3 if tasks else 2
    figure = Figure(figsize=(4.4 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels)
    lines: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        lines[record["config"]["method"], record["config"].get("acceptance", "")].append(record)
    for number, ((method, told), line) in enumerate(lines.items()):
        label = NAMES.get(method, method) + (f", {told}" if told else "")
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": label}
        look |= {"linestyle": "--", "markerfacecolor": "none"} if told else {}
        aside = apart(number, len(lines))
        _line(axes[0], line, "acceptance_length", "acceptance_low", "acceptance_high", look, aside)
        _line(axes[1], line, "tok_s", "tok_s_low", "tok_s_high", look, aside)
    axes[0].axhline(1, color=INK, linewidth=0.9, linestyle=":")
    greedy = records[0]["metrics"]["greedy_tok_s"]
    axes[1].axhline(greedy, color=INK, linewidth=0.9, linestyle=":", label=f"greedy, {greedy:.0f} tok/s")
    for number, task in enumerate(tasks):
        line = [_of_task(r, task) for r in records if r["config"]["method"] == "ddtree" and task in _tasks(r)]
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": task}
        aside = apart(number, len(tasks))
        _line(axes[2], line, "acceptance_length", "acceptance_low", "acceptance_high", look, aside)
    titles = ["tokens a pass", "tokens a second", "tokens a pass by task, tree"]
    for each, title in zip(axes, titles, strict=False):
        each.set_title(f"{title} ({SIMULATED})" if simulated else title, fontsize=9, loc="left", color=INK)
        each.set_xlabel("guesses a pass (budget; drawn a little apart)", fontsize=8)
        each.set_ylim(bottom=0)
        plain_log(each, sorted({r["config"]["budget"] for r in records}))
        tidy(each)
    if tasks:
        axes[2].set_ylim(top=1.4 * axes[2].get_ylim()[1])
        axes[2].legend(fontsize=7, frameon=False, ncols=2, loc="upper left")
    handles, labels = axes[1].get_legend_handles_labels()
    how = {"title": SIMULATED, "title_fontsize": 7.5} if simulated else {}
    figure.legend(handles, labels, fontsize=7.5, frameon=False, ncols=3, loc="outside lower center", **how)
    where = records[0].get("gpu") or records[0]["cpu"]
    figure.suptitle(
        f"{config['model']} with {config['draft']}, {config['context']:,} tokens read before, {where}"
        "; bars: 95 % bootstrap", fontsize=9,
    )  # fmt: skip
    return figure


def _tasks(record: Record) -> Mapping[str, Any]:
    found: Mapping[str, Any] = record["metrics"]["by_task"]
    return found


def _of_task(record: Record, task: str) -> Record:
    return {**record, "metrics": _tasks(record)[task]}


def _line(
    axes: Axes, records: Sequence[Record], name: str, low: str, high: str, look: Mapping[str, Any], aside: float
) -> None:
    """One line with intervals, by budget, drawn aside so that equal ones are all seen."""
    ordered = sorted(records, key=lambda r: r["config"]["budget"])
    x = [aside * r["config"]["budget"] for r in ordered]
    y = [r["metrics"][name] for r in ordered]
    below = [max(0.0, r["metrics"][name] - r["metrics"][low]) for r in ordered]
    above = [max(0.0, r["metrics"][high] - r["metrics"][name]) for r in ordered]
    axes.errorbar(x, y, [below, above], linewidth=1.2, markersize=4, capsize=2, elinewidth=0.8, **look)
