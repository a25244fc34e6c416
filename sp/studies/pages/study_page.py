"""Pages of evaluations: results of scorers with tables and pictures, and pages of summary lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sp.page.forest import ForestRow, Scale, forest, symmetric_ends
from sp.page.markup import Cell, Html, asset, facts, join, page, sortable, tag
from sp.studies.figures import PictureFormat, picture_markdown, save_figure, tokens_label
from sp.studies.plots.pareto import forest_figure, needle_figure, pareto_figure, stage_figure
from sp.studies.sweep.cells import FULL, Group, Table, kind_of
from sp.studies.sweep.comparable import Comparable
from sp.studies.sweep.store import Row
from sp.studies.tables.report_tables import (
    cells_csv,
    decode_table,
    grid_table,
    kept_table,
    oracle_points,
    points,
    share,
    time_table,
)
from sp.trace import write_atomic

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class View:
    """Columns of a summary for the plot and the table of a page.

    `value`, `low` and `high` are the columns of a plotted value and its interval, which are multiplied by `times` and
    formatted with `pattern`; `columns` are the columns of the table by head; `name` returns the name of a line; `ends`
    are those of the scale, by default symmetric around zero.
    """

    value: str
    low: str
    high: str
    times: float
    title: str
    pattern: str
    columns: Mapping[str, str]
    name: Callable[[Summary], str]
    ends: tuple[float, float] | None = None


def _strategy(line: Summary) -> str:
    return str(line["scorer"]) if line["scorer"] == line["selector"] else f"{line['scorer']} + {line['selector']}"


PREDICTED = View(
    "nll_change", "nll_change_low", "nll_change_high", 1, "nats per token above full prefill (95 %)", "{:+.3f}",
    {"task": "task", "tokens": "tokens_asked", "keep": "keep_ratio", "kept": "realised_keep", "n": "n",
     "not run": "not_run", "perplexity": "perplexity", "nll": "nll", "KL": "kl", "same token": "agreement"},
    _strategy,
)  # fmt: skip
TURNS = View(
    "accuracy", "low", "high", 100, "right % (95 %)", "{:.0f}",
    {"kind": "kind", "tokens": "tokens_asked", "keep": "keep_ratio", "n": "n", "not run": "not_run",
     "right": "accuracy", "to full": "against_full", "evidence kept": "given_kept", "kept tokens": "kept_tokens",
     "first token (s)": "ttft_s", "x": "speedup"},
    lambda line: str(line["way"]) if line["scorer"] == "full" else f"{line['way']}: {_strategy(line)}", (0, 100),
)  # fmt: skip
NATURAL = View(
    "whole", "low", "high", 100, "evidence kept whole, % (95 %)", "{:.0f}",
    {"overlap": "overlap", "keep": "keep_ratio", "n": "n", "kept whole": "whole", "share of tokens": "recall",
     "rank": "rank", "scoring (s)": "score_s", "right": "accuracy"},
    _strategy, (0, 100),
)  # fmt: skip
LINE_WORDS = frozenset({"task", "kind", "overlap"})
GROUP = ("task", "kind", "overlap", "tokens_asked", "keep_ratio")
"""Columns that the lines of a plot have in common; the full prefill, which has no keep ratio, is in all plots."""


def lines_page(title: str, lines: Sequence[Summary], view: View, note: str = "") -> str:
    """Return the HTML page of summary lines; all text of the lines is escaped."""
    ratios = sorted({line["keep_ratio"] for line in lines if line["cell"] >= 0 and line["keep_ratio"] is not None})
    places = list(dict.fromkeys(tuple(line.get(name) for name in GROUP[:-1]) for line in lines))
    plots = []
    for place in places:
        of_place = [line for line in lines if tuple(line.get(name) for name in GROUP[:-1]) == place]
        for keep in ratios:
            of_ratio = [line for line in of_place if line["cell"] < 0 or line["keep_ratio"] == keep]
            if any(line["cell"] >= 0 for line in of_ratio):
                place_text = " · ".join(
                    f"{part:,} tokens" if isinstance(part, int) else str(part) for part in place if part
                )
                plots.append(_plot(f"{place_text} · keep {keep:g}", of_ratio, view))
    note_below = [tag("p", note, class_="note")] if note else []
    first, rest = plots[:4], plots[4:]  # many plots would push the table off the first screens
    more = [tag("details", tag("summary", f"More ({len(rest)})"), *rest)] if rest else []
    main = tag(
        "main",
        tag("h1", title),
        *note_below,
        tag("h2", "By strategy"),
        *first,
        *more,
        tag("h2", "Every line"),
        _table(lines, view),
    )
    return page(title, main, styles=(asset("forest.css"),), scripts=(asset("sort.js"),))


def _plot(title: str, lines: Sequence[Summary], view: View) -> Html:
    plotted = []
    for line in lines:
        value, low, high = (_times(line.get(column), view.times) for column in (view.value, view.low, view.high))
        plotted.append(
            ForestRow(
                view.name(line), "full" if line["cell"] < 0 else kind_of(line["scorer"]), line["n"], value, low, high
            )
        )
    values = [value for row in plotted for value in (row.value, row.low, row.high) if value is not None]
    low, high = view.ends or symmetric_ends(values)
    full = next((row.value for row in plotted if row.kind == "full"), None)
    return forest(title, Scale(view.title, low, high, view.pattern, full), plotted)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _table(lines: Sequence[Summary], view: View) -> Html:
    rows = [
        [Cell(view.name(line), view.name(line)), *(_cell(line.get(column)) for column in view.columns.values())]
        for line in lines
    ]
    return sortable("Every line", ["strategy", *view.columns], rows, LINE_WORDS)


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("", "")
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return Cell(text, value)


DETAILED_RATIOS = (0.05, 0.1)  # keep ratios of the detailed tables; if none was run, the smallest that was
MAPS_A_PAGE = 6


def quality(group: Comparable, out: Path, prefix: str, times: bool, picture: PictureFormat) -> list[str]:
    """Return sections on answers, selections and, with `times`, time; write their pictures into `out`.

    Names of files begin with `prefix`. `write_report` writes the note on the drafter's training.
    """
    table = Table.of(group.rows)

    def draw(figure: Figure, name: str, title: str) -> str:
        file = f"{prefix}{name}.{picture}"
        save_figure(figure, out / file)
        return picture_markdown(title, file)

    ratios = table.values("keep_ratio")
    detailed = [ratio for ratio in DETAILED_RATIOS if ratio in ratios] or ratios[:1]
    parts = [
        "Right answers in per cent, with Wilson 95 % intervals; differences to the full prefill of the same examples "
        "in points, with paired bootstrap 95 % intervals. Controls are scorers that read no model. Oracles know the "
        "evidence or the answer of the target, and are upper references; both are at the end of the tables. "
        f"Every group of one task, length and keep ratio is in [{prefix}cells.csv]({prefix}cells.csv).",
        "## Right answers by keep ratio\n\nAll tasks and lengths together.\n\n"
        + grid_table(table, "keep_ratio", share, name=lambda r: f"keep {r:g}"),
        "### Against the full prefill\n\n" + grid_table(table, "keep_ratio", points, name=lambda r: f"keep {r:g}"),
    ]
    if table.oracles:
        parts.append(
            "### Distance to the oracle\n\nFrom the oracle that was right most often at the same task, length and keep "
            "ratio, on the same examples.\n\n"
            + grid_table(table, "keep_ratio", oracle_points, name=lambda r: f"keep {r:g}")
        )
    if len(ratios) > 1:
        parts.append(draw(pareto_figure(table, "kept_tokens"), "pareto_kept", "Right answers over kept tokens"))
    else:
        parts.append(draw(forest_figure(table, ratios[0]), "forest", "Right answers by strategy"))
    if times:
        parts.append(draw(pareto_figure(table, "ttft_s"), "pareto_ttft", "Right answers over time"))
    for keep in detailed:
        parts.append(f"## By task, keep ratio {keep:g}\n\n" + grid_table(table, "task", share, keep=keep))
        if table.oracles:
            distances = grid_table(table, "task", oracle_points, keep=keep)
            parts.append(f"### Distance to the oracle, keep ratio {keep:g}\n\n{distances}")
        by_length = grid_table(table, "tokens_asked", share, keep=keep, name=tokens_label)
        parts.append(f"## By prompt tokens, keep ratio {keep:g}\n\n" + by_length)
    parts.append("## Kept text\n\n" + kept_table(table, detailed))
    if any(row.get("acceptance_length") is not None for row in table.rows):
        parts.append("## Decoding\n\nMean tokens per pass, median seconds.\n\n" + decode_table(table, detailed))
    for keep in detailed:
        parts += needle_maps(table, keep, draw)
    if times:
        longest = table.values("tokens_asked")[-1]
        stages = draw(stage_figure(table, longest, detailed[0]), "stages", f"Stages at {tokens_label(longest)} tokens")
        parts.append(
            f"## Time to the first token, keep ratio {detailed[0]:g}\n\n"
            + "Median seconds, and the median speedup over the full prefill.\n\n"
            + f"{time_table(table, detailed[0])}\n\n{stages}"
        )
    write_atomic(out / f"{prefix}cells.csv", cells_csv(table, times).encode())
    return parts


def needle_maps(table: Table, keep: float, draw: Callable[[Figure, str, str], str]) -> list[str]:
    """Return maps of every needle task of several lengths at one keep ratio, `MAPS_A_PAGE` strategies per picture.

    `draw` saves a figure under a name and returns the Markdown that shows it with a title.
    """
    parts = []
    rows = [row for row in table.rows if row.get("depth") is not None and row["task"].startswith("needle")]
    lengths = {task: {row["tokens_asked"] for row in rows if row["task"] == task} for task in {r["task"] for r in rows}}
    tasks = sorted(task for task, counts in lengths.items() if len(counts) > 1)
    for task in tasks:
        present = {row["strategy"] for row in table.rows if row["task"] == task}
        names = [name for name in table.strategies() if name in present]
        slug = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in task)[:80]
        for number, start in enumerate(range(0, len(names), MAPS_A_PAGE), 1):
            figure = needle_figure(table, task, keep, names[start : start + MAPS_A_PAGE])
            title = f"{task}, depth over length, keep ratio {keep:g}"
            parts.append(draw(figure, f"map_{slug}_{keep:g}_{number}", title))
    return [f"## Needles by depth and length, keep ratio {keep:g}", *parts] if parts else []


HEADS = (
    "strategy", "task", "tokens", "keep", "n", "right %", "95 %", "to full", "needle kept", "evidence kept",
    "kept tokens", "blocks read", "first token (s)", "x",
)  # fmt: skip
TIMES = HEADS[-2:]
WORDS = frozenset({"task"})
MOST = 24  # forest plots by task, or by length, for each keep ratio
BY = {"task": "By task", "tokens_asked": "By prompt tokens"}
READING_HELP = (
    "Right answers in per cent with Wilson 95 % intervals; differences to the full prefill of the same examples in "
    "points, with paired bootstrap 95 % intervals. The dashed line is the full prefill. Controls read no model; "
    "oracles know the evidence or the answer. Both are references only. Blocks read are the share of the attention "
    "blocks that the drafter read, empty where it read all."
)


@dataclass(frozen=True)
class Section:
    """Rows in which every strategy read the same examples. `note`: on the drafter's training, if it is known."""

    title: str
    rows: Sequence[Row] = field(repr=False)
    note: str = ""


def study_page(
    title: str,
    sections: Sequence[Section],
    source_facts: Sequence[tuple[str, str]] = (),
    times: bool = True,
    *,
    note: str = "",
) -> str:
    """Return the page as HTML; all text of rows is escaped.

    Parameters
    ----------
    title : str
    sections : sequence of Section
    source_facts : sequence of (name, value)
        Sources of the rows.
    times : bool
        Include seconds; those of runs that shared a device mean nothing.
    note : str
        Note on the training of the drafter of all sections; empty if sections have different ones of their own.
    """
    body: list[object] = [tag("h1", title)]
    body += [tag("h2", "Sources of these results"), facts(list(source_facts))] if source_facts else []
    body += [tag("h2", "How to read the plots"), tag("p", READING_HELP)]
    body += [tag("p", note, class_="note")] if note else []
    for section in sections:
        body.append(tag("h2", section.title if len(sections) > 1 else "Answers"))
        body += _section(section, times)
    main = tag("main", join(body, "\n"))
    return page(title, main, styles=(asset("forest.css"),), scripts=(asset("sort.js"),))


def _section(section: Section, times: bool) -> Iterator[Html]:
    table = Table.of(section.rows)
    cells = table.groups("task", "tokens_asked", "keep_ratio")
    tasks, lengths = table.values("task"), table.values("tokens_asked")
    if not cells:
        yield tag("p", "No example could be run.")
        return
    yield tag("p", _sizes(cells, tasks, lengths, len(section.rows) - len(table.rows)))
    if section.note:
        yield tag("p", section.note, class_="note")
    for keep in table.values("keep_ratio"):
        yield tag("h3", f"Keep ratio {keep:g}")
        pooled = {key[0]: group for key, group in table.groups(keep=[keep]).items()}
        where = f"{_several(tasks, 'task')}, {_several([tokens_label(tokens) for tokens in lengths], 'length')}"
        yield _answers(f"Right answers: {where}", pooled)
        yield _differences(f"Against the full prefill: {where}", pooled)
        if len(tasks) > 1:
            yield _plots_by(table, keep, "task", tasks, str)
        if len(lengths) > 1:
            yield _plots_by(table, keep, "tokens_asked", lengths, lambda tokens: f"{tokens_label(tokens)} tokens")
    yield tag("h3", "Every strategy, task, length and keep ratio")
    yield _cells(f"Every cell of {section.title}", cells, times)


def _sizes(cells: dict[tuple[Any, ...], Group], tasks: Sequence[str], lengths: Sequence[int], not_run: int) -> str:
    """Return a sentence on the numbers of cells and examples, with a warning about cells of one example."""
    sizes = sorted({group.n for group in cells.values()})
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    text = f"{len(cells):,} cells of {span} example{'s' * (sizes[-1] > 1)}: {_several(tasks, 'task')}, "
    text += f"{_several([tokens_label(tokens) for tokens in lengths], 'length')}."
    if single := sum(group.n == 1 for group in cells.values()):
        text += f" {single:,} of them have one example (n = 1), too few to estimate a rate."
    return text + (f" {not_run:,} rows were not run." if not_run else "")


def _several(names: Sequence[str], noun: str) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{len(names)} {noun}s"


def _plots_by(table: Table, keep: float, by: str, values: Sequence[Any], name: Callable[[Any], str]) -> Html:
    """Return plots of each task or length, in an element that is closed at first."""
    groups = table.groups(by, keep=[keep])
    plots = [
        _answers(name(value), {key[0]: group for key, group in groups.items() if key[1] == value})
        for value in values[:MOST]
    ]
    rest = f"; {len(values) - MOST} more in the table" if len(values) > MOST else ""
    return tag("details", tag("summary", f"{BY[by]} ({len(plots)}{rest})"), *plots)


def _answers(title: str, groups: dict[str, Group]) -> Html:
    full = [100 * group.accuracy for name, group in groups.items() if name.startswith(FULL)]
    scale = Scale("right % (95 %)", 0, 100, "{:.0f}", full[0] if len(full) == 1 else None)
    lines = [_line(name, groups, (group.accuracy, *group.interval)) for name, group in groups.items()]
    return forest(title, scale, lines)


def _line(name: str, groups: Mapping[str, Group], shares: tuple[float, float, float]) -> ForestRow:
    value, low, high = (100 * share for share in shares)
    return ForestRow(name, kind_of(name), groups[name].n, value, low, high, _coverage_note(groups[name], groups))


def _coverage_note(group: Group, groups: Mapping[str, Group]) -> str:
    """Return a note if a strategy has fewer tasks or lengths than all strategies together; else empty."""
    parts = []
    for column, noun in (("task", "tasks"), ("tokens_asked", "lengths")):
        own = {row[column] for row in group.rows}
        everything = {row[column] for other in groups.values() for row in other.rows}
        parts += [f"{len(own)} of {len(everything)} {noun}"] if own < everything else []
    return "only " + ", ".join(parts) if parts else ""


def _differences(title: str, groups: dict[str, Group]) -> Html:
    """Return a plot of differences to the full prefill in points; empty if it was not run."""
    differences = {name: group.difference() for name, group in groups.items() if not name.startswith(FULL)}
    lines = [_line(name, groups, difference) for name, difference in differences.items() if difference]
    if not lines:
        return Html("")
    low, high = symmetric_ends(
        [value for line in lines for value in (line.value, line.low, line.high) if value is not None]
    )
    plot = forest(title, Scale("points (95 %)", low, high, "{:+.0f}", 0.0), lines)
    return tag("details", tag("summary", "Against the full prefill, on the same examples"), plot)


def _cells(caption: str, cells: dict[tuple[Any, ...], Group], times: bool) -> Html:
    rows = []
    for (strategy, task, tokens, keep), group in cells.items():
        low, high = group.interval
        kind = kind_of(strategy)
        name = [strategy, tag("small", f" {kind}")] if kind in ("control", "oracle") else [strategy]
        row = [
            Cell(join(name), strategy),
            Cell(task, task),
            Cell(f"{tokens:,}", tokens),
            Cell(f"{keep:g}", keep),
            Cell(f"{group.n:,}", group.n),
            Cell(f"{100 * group.accuracy:.1f}", group.accuracy),
            Cell(f"{100 * low:.0f} to {100 * high:.0f}" if group.n > 1 else "one example", low),
            _points(group),
            _measured(group.mean("needle_recall"), "{:.0%}"),
            _measured(group.mean("given_kept"), "{:.0%}"),
            _measured(group.mean("kept_tokens"), "{:,.0f}"),
            _measured(group.mean("drafter_density"), "{:.1%}"),
            _measured(group.median("ttft_s"), "{:.3g}"),
            _measured(group.speedup(), "{:.1f}"),
        ]
        rows.append(row if times else row[: -len(TIMES)])
    heads = HEADS if times else HEADS[: -len(TIMES)]
    return sortable(caption, heads, rows, WORDS)


def _points(group: Group) -> Cell:
    difference = group.difference()
    if difference is None:
        return Cell("", "")
    mean, low, high = (100 * value for value in difference)
    return Cell(f"{mean:+.0f} ({low:+.0f} to {high:+.0f})" if group.n > 1 else f"{mean:+.0f}", mean)


def _measured(value: float | None, pattern: str) -> Cell:
    return Cell("", "") if value is None else Cell(pattern.format(value), value)
