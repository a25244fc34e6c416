"""Entries of a leaderboard as a matrix of scorers by tasks, as Markdown, and as a page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from html import escape

from sp.page.forest import Kind
from sp.page.markup import Html, asset, page, tag
from sp.studies.board.entries import KINDS, Board, BoardEntry, Interval, command_of, slotted
from sp.studies.sweep.cells import strategy_order
from sp.studies.tables.lookup import markdown


@dataclass(frozen=True)
class MatrixLine:
    """A scorer with its entries by task."""

    scorer: str
    trained: str
    kind: Kind
    entries: dict[str, BoardEntry]

    @property
    def title(self) -> str:
        """Name of the scorer, and the tasks that its weights were trained without."""
        return self.scorer + (f" ({self.trained})" if self.trained else "")

    def mean(self, tasks: Sequence[str]) -> float | None:
        """Return the mean accuracy over tasks; None if one of them was not measured."""
        accuracies = [self.entries[task].accuracy if task in self.entries else None for task in tasks]
        known = [accuracy for accuracy in accuracies if accuracy is not None]
        return sum(known) / len(known) if known and len(known) == len(accuracies) else None

    @property
    def n(self) -> str:
        """Number of examples of a task, or the smallest and largest number."""
        sizes = sorted({entry.n for entry in self.entries.values()})
        return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


@dataclass(frozen=True)
class Matrix:
    """Comparable results of one pair, length and keep ratio: lines of scorers, columns of tasks."""

    pair: str
    tokens: int
    keep: float
    tasks: tuple[str, ...]
    lines: tuple[MatrixLine, ...]


def matrices(board: Board, pair: str) -> Iterator[Matrix]:
    """Return the matrices of a pair by length and keep ratio; each begins with the full prefill of its tasks."""
    entries = board.of(pair)
    places = sorted({(entry.tokens, entry.keep) for entry in entries if entry.keep is not None})
    for tokens, keep in places:
        here = [entry for entry in entries if entry.tokens == tokens and entry.keep == keep]
        tasks = tuple(sorted({entry.task for entry in here}))
        whole = [entry for entry in entries if entry.tokens == tokens and entry.keep is None and entry.task in tasks]
        yield Matrix(pair, tokens, keep, tasks, tuple(_lines([*whole, *here])))


def compared(entry: BoardEntry, other: BoardEntry) -> tuple[float, bool] | None:
    """Return the difference of two accuracies, and True if their intervals are disjoint; None if one is missing."""
    if entry.accuracy is None or entry.low is None or entry.high is None:
        return None
    if other.accuracy is None or other.low is None or other.high is None:
        return None
    return entry.accuracy - other.accuracy, entry.low > other.high or entry.high < other.low


def _lines(entries: Sequence[BoardEntry]) -> list[MatrixLine]:
    """Return the lines ordered by kind; two files of weights with the same name have a line each."""
    grouped: dict[tuple[str, str, int], dict[str, BoardEntry]] = defaultdict(dict)
    for entry in entries:
        # A task that a line of this name already has is of other weights: it goes into the next line of the name.
        turn = sum(entry.task in known for key, known in grouped.items() if key[:2] == (entry.scorer, entry.trained))
        grouped[entry.scorer, entry.trained, turn][entry.task] = entry
    lines = [MatrixLine(*key[:2], next(iter(by_task.values())).kind, by_task) for key, by_task in grouped.items()]
    return sorted(lines, key=lambda line: (KINDS.index(line.kind), strategy_order(line.scorer), line.trained))


def commands(board: Board, line: MatrixLine) -> list[str]:
    """Return the commands that repeat a line, one for all tasks with the same number of examples."""
    # `sp eval tasks` takes one number of examples for all its tasks.
    groups: dict[int, list[BoardEntry]] = defaultdict(list)
    for entry in line.entries.values():
        groups[entry.n + entry.not_run].append(entry)
    texts = []
    for n, entries in groups.items():
        row, pair = entries[0].row, entries[0].pair
        tasks = [entry.task for entry in entries]
        texts.append(command_of({**row, "scorer": slotted(row)}, tasks, n, board.models[pair], board.sweeps[pair]))
    return [command for command in texts if command]


INTRODUCTION = (
    "Right answers in per cent, with Wilson's 95 % interval. Differences are in percentage points on the same "
    "examples, with a 95 % bootstrap interval: to the full prefill, and to the best oracle at that length and keep "
    "ratio, an upper reference for scorers. Oracles know the evidence or run on the target; controls read no model. n "
    "is the number of examples of a task. Each pair of models has its own tables."
)
LEFT_OUT = (
    "Weights with a name such as `probe-without-{task}` were trained on other tasks than the one they are measured on; "
    "there is a file for each task."
)


def share(entry: BoardEntry) -> str:
    """Format an accuracy in per cent with its interval; a dash if nothing was read."""
    if entry.accuracy is None or entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.accuracy:.0f} ({100 * entry.low:.0f} to {100 * entry.high:.0f})"


def points(interval: Interval | None) -> str:
    """Format a difference in percentage points with its interval; a dash if there is nothing to compare with."""
    if interval is None:
        return "-"
    mean, low, high = (100 * value + 0.0 for value in interval)
    return f"{mean:+.0f} ({low:+.0f} to {high:+.0f})"


def as_markdown(board: Board, reference: str = "") -> str:
    """Render the leaderboard as Markdown.

    `reference` is the name of a scorer that all others are also compared with, as its entries have it; empty for none.
    """
    parts = ["# Leaderboard", INTRODUCTION]
    if board.facts:
        parts.append("\n".join(f"- {name}: {_escaped(value)}" for name, value in board.facts.items()))
    for pair, note in board.pairs.items():
        parts.append(f"## {_escaped(pair)}")
        parts += [note] if note else []
        if any("{task}" in entry.scorer for entry in board.of(pair)):
            parts.append(LEFT_OUT)
        for matrix in matrices(board, pair):
            parts += _section(board, matrix, reference)
    return "\n\n".join(parts) + "\n"


def _section(board: Board, matrix: Matrix, reference: str) -> Iterator[str]:
    yield f"### {matrix.tokens:,} tokens, keep {matrix.keep:g}"
    yield _score_table(matrix, share, matrix.lines, means=len(matrix.tasks) > 1)
    compressed = [line for line in matrix.lines if line.kind != "full"]
    if any(entry.against_full for line in compressed for entry in line.entries.values()):
        yield "Against the full prefill:"
        yield _score_table(matrix, lambda entry: points(entry.against_full), compressed)
    oracles = sorted({entry.oracle for line in compressed for entry in line.entries.values()} - {""})
    if oracles:
        yield f"Distance to the best oracle ({_escaped(', '.join(oracles))}):"
        yield _score_table(matrix, lambda entry: points(entry.against_oracle), compressed)
    reference_line = next((line for line in matrix.lines if line.scorer == reference), None)
    if reference_line:
        yield f"Against {_escaped(reference)}, in points; bold if the two 95 % intervals are disjoint:"
        others = [line for line in compressed if line is not reference_line]
        yield _score_table(matrix, lambda entry: difference_text(entry, reference_line.entries.get(entry.task)), others)
    texts = [command for line in matrix.lines for command in commands(board, line)]
    if texts:
        yield "<details><summary>Commands of the rows</summary>\n\n```sh\n" + "\n".join(texts) + "\n```\n\n</details>"


def difference_text(entry: BoardEntry, other: BoardEntry | None) -> str:
    """Format the difference of two accuracies in points, bold if their intervals are disjoint; a dash if one is
    missing."""
    comparison = compared(entry, other) if other else None
    if comparison is None:
        return "-"
    difference, disjoint = comparison
    return f"**{100 * difference:+.0f}**" if disjoint else f"{100 * difference:+.0f}"


def _score_table(
    matrix: Matrix, show: Callable[[BoardEntry], str], lines: Sequence[MatrixLine], means: bool = False
) -> str:
    rows = []
    for line in lines:
        cells = [show(line.entries[task]) if task in line.entries else "" for task in matrix.tasks]
        mean = line.mean(matrix.tasks)
        cells += ["" if mean is None else f"{100 * mean:.1f}"] if means else []
        kind = f" *{line.kind}*" if line.kind in ("oracle", "control") else ""
        rows.append([_escaped(line.title) + kind, *cells, line.n])
    return markdown(["scorer", *map(_escaped, matrix.tasks), *(["mean"] if means else []), "n"], rows)


def _escaped(name: str) -> str:
    """Escape a name, so that it is on one line and has no Markdown markup."""
    return "".join(f"\\{letter}" if letter in "|*`<[" else letter for letter in " ".join(name.split()))


FILTERS = ("pair", "task", "tokens", "keep", "kind")  # menus that filter the entries
HEADS = (
    "scorer", "kind", "task", "tokens", "keep", "n", "right %", "95 %", "to full", "to oracle", "evidence kept",
    "weights", "pair", "command",
)  # fmt: skip
WORDS = frozenset({"kind", "task", "weights", "pair", "command"})
"""Those of `HEADS` that are over columns of text, which are aligned to the left."""


def as_html(board: Board) -> str:
    """Render the leaderboard as one HTML file. Every text of a record is escaped, since anyone may have written it."""
    parts = ["<h1>Leaderboard</h1>", f"<p>{escape(INTRODUCTION)}</p>"]
    if board.facts:
        facts = " · ".join(f"{escape(name)}: {escape(value)}" for name, value in board.facts.items())
        parts.append(f'<p class="facts">{facts}</p>')
    for pair, note in board.pairs.items():
        parts.append(f"<h2>{escape(pair)}</h2>")
        left_out = LEFT_OUT.replace("`", "") if any("{task}" in entry.scorer for entry in board.of(pair)) else ""
        parts += [f'<p class="note">{escape(text)}</p>' for text in (note, left_out) if text]
        for place, matrix in enumerate(matrices(board, pair)):
            opened = " open" if place == 0 else ""
            title = f"{matrix.tokens:,} tokens, keep {matrix.keep:g}"
            rows = [
                _row(line.kind, [_name(line.title, line.kind), *_shares(line, matrix.tasks)]) for line in matrix.lines
            ]
            table = _table(title, ["scorer", *matrix.tasks, "mean", "n"], rows)
            parts.append(f"<details{opened}><summary>{title}</summary>\n{table}\n</details>")
    parts += ["<h2>Every entry</h2>", _filters(board.entries), _everything(board.entries)]
    body = tag("main", Html("\n".join(parts)))
    return page("Leaderboard", body, styles=(asset("board.css", __package__),), scripts=(scripts(),))


def scripts() -> str:
    """Return the JavaScript that sorts and filters the tables."""
    return asset("sort.js") + asset("filter.js", __package__)


def _shares(line: MatrixLine, tasks: Sequence[str]) -> Iterator[str]:
    for task in tasks:
        entry = line.entries.get(task)
        if entry is None or entry.accuracy is None:
            yield '<td data-value=""></td>' if entry is None else '<td data-value="">-</td>'
            continue
        oracle = entry.against_oracle
        under = f"<small>{_in_two(f'to oracle {points(oracle)}')}</small>" if oracle and line.kind != "oracle" else ""
        shade, value = round(10 * entry.accuracy), f'data-value="{entry.accuracy:.6f}"'
        text = f"{100 * entry.accuracy:.0f} <small>{_bounds(entry)}</small>{under}"
        yield f'<td class="share s{shade}" {value}>{text}</td>'
    mean = line.mean(tasks)
    yield '<td data-value=""></td>' if mean is None else f'<td data-value="{mean:.6f}">{100 * mean:.1f}</td>'
    yield f"<td>{escape(line.n)}</td>"


def _everything(entries: Sequence[BoardEntry]) -> str:
    rows = []
    for entry in entries:
        values = dict(zip(FILTERS, _keys(entry), strict=True))
        data = "".join(f' data-{name}="{escape(value)}"' for name, value in values.items())
        accuracy = "" if entry.accuracy is None else f"{100 * entry.accuracy:.1f}"
        evidence = "" if entry.evidence is None else f"{100 * entry.evidence:.0f}"
        weights = " ".join(filter(None, [entry.trained, f"({entry.weights})" if entry.weights else ""]))
        lost = f"<small>{entry.not_run:,} not run</small>" if entry.not_run else ""
        cells = [
            _name(entry.scorer, entry.kind),
            _text(entry.kind),
            _text(entry.task),
            f'<td data-value="{entry.tokens}">{entry.tokens:,}</td>',
            f"<td>{values['keep']}</td>",
            f'<td data-value="{entry.n}">{entry.n:,}{lost}</td>',
            f'<td data-value="{accuracy}">{accuracy or "-"}</td>',
            f'<td data-value="{accuracy}">{_bounds(entry)}</td>',
            _difference(entry.against_full),
            _difference(entry.against_oracle),
            f'<td data-value="{evidence}">{evidence and evidence + " %"}</td>',
            _text(weights),
            _text(entry.pair),
            f"<td><code>{escape(entry.command)}</code></td>",
        ]
        rows.append(_row(entry.kind, cells, data))
    return _table("Every entry", HEADS, rows, "all", WORDS)


def _keys(entry: BoardEntry) -> tuple[str, ...]:
    """Return the values of an entry by which it is filtered, in the order of `FILTERS`."""
    return entry.pair, entry.task, str(entry.tokens), "1" if entry.keep is None else f"{entry.keep:g}", entry.kind


def _filters(entries: Sequence[BoardEntry]) -> str:
    menus = []
    for place, name in enumerate(FILTERS):
        values = list(dict.fromkeys(_keys(entry)[place] for entry in entries))
        choices = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
        menus.append(f'<label>{name} <select name="{name}"><option value="">all</option>{choices}</select></label>')
    return f'<div class="filters">{"".join(menus)}<output></output></div>'


def _table(
    caption: str, heads: Sequence[str], rows: Sequence[str], name: str = "", words: Set[str] = frozenset()
) -> str:
    """Return a sortable table; `caption` is its label for screen readers, `words` the heads of text columns."""
    named = f' id="{name}"' if name else ""
    label = f' aria-label="{escape(caption)}"'
    classes = (' class="text"' if head in words else "" for head in heads)
    top = "".join(
        f'<th scope="col"{kind}><button>{escape(head)}</button></th>' for kind, head in zip(classes, heads, strict=True)
    )
    body = "\n".join(rows)
    table = f'<table{named} class="sorts"{label}><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region"{label}>{table}</div>'


def _row(kind: str, cells: Sequence[str], data: str = "") -> str:
    return f'<tr class="{kind}"{data}>{"".join(cells)}</tr>'


def _name(name: str, kind: str) -> str:
    tag_of_kind = f"<small>{kind}</small>" if kind in ("oracle", "control") else ""
    breakable = re.sub(r"([_/=.-])(?=\w)", r"\1<wbr>", escape(name))  # line breaks only after punctuation
    return f'<td data-value="{escape(name)}">{breakable}{tag_of_kind}</td>'


def _in_two(text: str) -> str:
    """Return a difference and its interval as two spans that are not broken within."""
    value, bracket, interval = escape(text).partition(" (")
    return f"<span>{value}</span>" + (f" <span>({interval}</span>" if bracket else "")


def _text(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>'


def _bounds(entry: BoardEntry) -> str:
    if entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.low:.0f} to {100 * entry.high:.0f}"


def _difference(interval: Interval | None) -> str:
    value = "" if interval is None else f"{100 * interval[0]:.4f}"
    return f'<td data-value="{value}">{points(interval)}</td>'
