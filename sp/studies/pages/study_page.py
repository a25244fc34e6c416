"""`report.html` of evaluations and sweeps: a forest plot for each keep ratio, all strategies in one, and every cell to
sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sp.page.forest import Kind, Line, Scale, forest, spread
from sp.page.markup import Cell, Html, asset, facts, join, page, sortable, tag
from sp.studies.style import tokens_label
from sp.studies.sweep.cells import FULL, Group, Table, is_control, is_oracle
from sp.studies.sweep.store import Row

HEADS = (
    "strategy", "task", "tokens", "keep", "n", "right %", "95 %", "to full", "needle kept", "evidence kept",
    "kept tokens", "first token (s)", "x",
)  # fmt: skip
TIMES = HEADS[-2:]
WORDS = frozenset({"task"})
MOST = 24
"""Forest plots of one task or length, a keep ratio."""
BY = {"task": "By task", "tokens_asked": "By prompt tokens"}
HOW = (
    "Right answers in per cent with Wilson 95 % intervals; differences to the full prefill of the same examples in "
    "points, with paired bootstrap 95 % intervals. The dashed line is the full prefill. Controls read no model; "
    "oracles know the evidence or the answer. Both are only there to compare with."
)


@dataclass(frozen=True)
class Section:
    """Rows of which every strategy read the same examples.

    `note`: what the drafter was trained for, if it is known.
    """

    title: str
    rows: Sequence[Row] = field(repr=False)
    note: str = ""


def study_page(
    title: str, sections: Sequence[Section], told: Sequence[tuple[str, str]] = (), times: bool = True
) -> str:
    """The page; all text of rows is escaped.

    `told`, sequence of (name, value): where the rows come from; `times`: whether seconds are shown: those of runs side
    by side on one device mean nothing.
    """
    body = [tag("h1", title), facts(list(told)) if told else "", tag("p", HOW)]
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
        where = f"{_several(tasks, 'task')}, {_several([tokens_label(one) for one in lengths], 'length')}"
        yield _answers(f"Right answers: {where}", pooled)
        yield _differences(f"Against the full prefill: {where}", pooled)
        if len(tasks) > 1:
            yield _each(table, keep, "task", tasks, str)
        if len(lengths) > 1:
            yield _each(table, keep, "tokens_asked", lengths, lambda tokens: f"{tokens_label(tokens)} tokens")
    yield tag("h3", "Every strategy, task, length and keep ratio")
    yield _cells(f"Every cell of {section.title}", cells, times)


def _sizes(cells: dict[tuple[Any, ...], Group], tasks: Sequence[str], lengths: Sequence[int], lost: int) -> str:
    """How much there is to go by, and what one example cannot say."""
    sizes = sorted({group.n for group in cells.values()})
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    told = f"{len(cells):,} cells of {span} example{'s' * (sizes[-1] > 1)}: {_several(tasks, 'task')}, "
    told += f"{_several([tokens_label(one) for one in lengths], 'length')}."
    if single := sum(group.n == 1 for group in cells.values()):
        told += f" {single:,} of them rest on one example (n = 1), which says next to nothing of how often."
    return told + (f" {lost:,} rows were not run." if lost else "")


def _several(names: Sequence[str], what: str) -> str:
    return f"{what} {names[0]}" if len(names) == 1 else f"{len(names)} {what}s"


def _each(table: Table, keep: float, by: str, values: Sequence[Any], name: Callable[[Any], str]) -> Html:
    """The same for each task or length, closed."""
    groups = table.groups(by, keep=[keep])
    shown = [
        _answers(name(one), {key[0]: group for key, group in groups.items() if key[1] == one}) for one in values[:MOST]
    ]
    rest = f"; {len(values) - MOST} more in the table" if len(values) > MOST else ""
    return tag("details", tag("summary", f"{BY[by]} ({len(shown)}{rest})"), *shown)


def _kind(strategy: str) -> Kind:
    if strategy.startswith(FULL):
        return "full"
    return "oracle" if is_oracle(strategy) else "control" if is_control(strategy) else "scorer"


def _answers(title: str, groups: dict[str, Group]) -> Html:
    """Shares of right answers, every strategy on one scale."""
    full = [100 * group.accuracy for name, group in groups.items() if name.startswith(FULL)]
    scale = Scale("right % (95 %)", 0, 100, "{:.0f}", full[0] if len(full) == 1 else None)
    lines = [_line(name, groups, (group.accuracy, *group.interval)) for name, group in groups.items()]
    return forest(title, scale, lines)


def _line(name: str, groups: Mapping[str, Group], shares: tuple[float, float, float]) -> Line:
    """A strategy's value and interval in per cent."""
    value, low, high = (100 * share for share in shares)
    return Line(name, _kind(name), groups[name].n, value, low, high, _partly(groups[name], groups))


def _partly(group: Group, groups: Mapping[str, Group]) -> str:
    """What of the others' tasks and lengths a strategy was not asked; nothing if it was asked all of it."""
    told = []
    for column, what in (("task", "tasks"), ("tokens_asked", "lengths")):
        asked = {row[column] for row in group.rows}
        all_asked = {row[column] for one in groups.values() for row in one.rows}
        told += [f"{len(asked)} of {len(all_asked)} {what}"] if asked < all_asked else []
    return "only " + ", ".join(told) if told else ""


def _differences(title: str, groups: dict[str, Group]) -> Html:
    """Differences to the full prefill in points; nothing where none was run."""
    found = {name: group.difference() for name, group in groups.items() if not name.startswith(FULL)}
    lines = [_line(name, groups, each) for name, each in found.items() if each]
    if not lines:
        return Html("")
    low, high = spread([value for line in lines for value in (line.value, line.low, line.high) if value is not None])
    plot = forest(title, Scale("points (95 %)", low, high, "{:+.0f}", 0.0), lines)
    return tag("details", tag("summary", "Against the full prefill, on the same examples"), plot)


def _cells(caption: str, cells: dict[tuple[Any, ...], Group], times: bool) -> Html:
    """A row a cell."""
    rows = []
    for (strategy, task, tokens, keep), group in cells.items():
        low, high = group.interval
        kind = _kind(strategy)
        name = [strategy, tag("small", f" {kind}")] if kind in ("control", "oracle") else [strategy]
        one = [
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
            _measured(group.median("ttft_s"), "{:.3g}"),
            _measured(group.speedup(), "{:.1f}"),
        ]
        rows.append(one if times else one[: -len(TIMES)])
    heads = HEADS if times else HEADS[: -len(TIMES)]
    return sortable(caption, heads, rows, WORDS)


def _points(group: Group) -> Cell:
    found = group.difference()
    if found is None:
        return Cell("", "")
    mean, low, high = (100 * value for value in found)
    return Cell(f"{mean:+.0f} ({low:+.0f} to {high:+.0f})" if group.n > 1 else f"{mean:+.0f}", mean)


def _measured(value: float | None, pattern: str) -> Cell:
    return Cell("", "") if value is None else Cell(pattern.format(value), value)
