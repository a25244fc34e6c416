"""The leaderboard as one HTML file that needs nothing else: matrices to look at, and every entry to sort and filter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from html import escape

from sp.page.markup import Html, asset, page, tag
from sp.studies.board.entries import Board, Entry, Interval
from sp.studies.board.markdown import INTRODUCTION, LEFT_OUT, points
from sp.studies.board.matrix import Line, Matrix, matrices

FILTERS = ("pair", "task", "tokens", "keep", "kind")
"""What entries can be filtered by."""
HEADS = (
    "scorer", "kind", "task", "tokens", "keep", "n", "right %", "95 %", "to full", "to oracle", "evidence kept",
    "weights", "pair", "command",
)  # fmt: skip
WORDS = frozenset({"kind", "task", "weights", "pair", "command"})
"""Those of `HEADS` over words, which begin where their words do."""


def as_html(board: Board) -> str:
    """The whole page; every text of a record is escaped."""
    parts = ["<h1>Leaderboard</h1>", f"<p>{escape(INTRODUCTION)}</p>"]
    if board.facts:
        told = " · ".join(f"{escape(name)}: {escape(value)}" for name, value in board.facts.items())
        parts.append(f'<p class="facts">{told}</p>')
    for pair, note in board.pairs.items():
        parts.append(f"<h2>{escape(pair)}</h2>")
        left_out = LEFT_OUT.replace("`", "") if any("{task}" in entry.scorer for entry in board.of(pair)) else ""
        parts += [f'<p class="note">{escape(text)}</p>' for text in (note, left_out) if text]
        for place, matrix in enumerate(matrices(board, pair)):
            opened = " open" if place == 0 else ""
            title = f"{matrix.tokens:,} tokens, keep {matrix.keep:g}"
            parts.append(f"<details{opened}><summary>{title}</summary>\n{_matrix(matrix)}\n</details>")
    parts += ["<h2>Every entry</h2>", _filters(board.entries), _everything(board.entries)]
    body = tag("main", Html("\n".join(parts)))
    return page("Leaderboard", body, styles=(asset("board.css", __package__),), scripts=(scripts(),))


def scripts() -> str:
    """What sorts and filters."""
    return asset("sort.js") + asset("filter.js", __package__)


def _matrix(matrix: Matrix) -> str:
    """Right answers by scorer and task, under each its distance to the best oracle."""
    rows = [_row(line.kind, [_name(line.title, line.kind), *_shares(line, matrix.tasks)]) for line in matrix.lines]
    return _table(["scorer", *matrix.tasks, "mean", "n"], rows)


def _shares(line: Line, tasks: Sequence[str]) -> Iterator[str]:
    for task in tasks:
        entry = line.entries.get(task)
        if entry is None or entry.accuracy is None:
            yield '<td data-value=""></td>' if entry is None else '<td data-value="">-</td>'
            continue
        oracle = entry.against_oracle
        under = f"<small>{_in_two(f'to oracle {points(oracle)}')}</small>" if oracle and line.kind != "oracle" else ""
        shade, value = round(10 * entry.accuracy), f'data-value="{entry.accuracy:.6f}"'
        shown = f"{100 * entry.accuracy:.0f} <small>{_bounds(entry)}</small>{under}"
        yield f'<td class="share s{shade}" {value}>{shown}</td>'
    mean = line.mean(tasks)
    yield '<td data-value=""></td>' if mean is None else f'<td data-value="{mean:.6f}">{100 * mean:.1f}</td>'
    yield f"<td>{escape(line.n)}</td>"


def _everything(entries: Sequence[Entry]) -> str:
    """All entries, a row each."""
    rows = []
    for entry in entries:
        values = dict(zip(FILTERS, _keys(entry), strict=True))
        data = "".join(f' data-{name}="{escape(value)}"' for name, value in values.items())
        accuracy = "" if entry.accuracy is None else f"{100 * entry.accuracy:.1f}"
        evidence = "" if entry.evidence is None else f"{100 * entry.evidence:.0f}"
        weights = " ".join(filter(None, [entry.trained, f"({entry.weights})" if entry.weights else ""]))
        cells = [
            _name(entry.scorer, entry.kind),
            _text(entry.kind),
            _text(entry.task),
            f'<td data-value="{entry.tokens}">{entry.tokens:,}</td>',
            f"<td>{values['keep']}</td>",
            f'<td data-value="{entry.n}">{entry.n:,}{_not_run(entry)}</td>',
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
    return _table(HEADS, rows, "all", WORDS)


def _keys(entry: Entry) -> tuple[str, ...]:
    """What an entry is filtered by, in the order of `FILTERS`."""
    return entry.pair, entry.task, str(entry.tokens), "1" if entry.keep is None else f"{entry.keep:g}", entry.kind


def _filters(entries: Sequence[Entry]) -> str:
    """A menu for each of `FILTERS`."""
    menus = []
    for place, name in enumerate(FILTERS):
        values = list(dict.fromkeys(_keys(entry)[place] for entry in entries))
        choices = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
        menus.append(f'<label>{name} <select name="{name}"><option value="">all</option>{choices}</select></label>')
    return f'<div class="filters">{"".join(menus)}<output></output></div>'


def _table(heads: Sequence[str], rows: Sequence[str], name: str = "", words: Set[str] = frozenset()) -> str:
    named = f' id="{name}"' if name else ""
    classes = (' class="text"' if head in words else "" for head in heads)
    top = "".join(
        f'<th scope="col"{kind}><button>{escape(head)}</button></th>' for kind, head in zip(classes, heads, strict=True)
    )
    body = "\n".join(rows)
    table = f'<table{named} class="sorts"><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _row(kind: str, cells: Sequence[str], data: str = "") -> str:
    return f'<tr class="{kind}"{data}>{"".join(cells)}</tr>'


def _name(name: str, kind: str) -> str:
    told = f"<small>{kind}</small>" if kind in ("oracle", "control") else ""
    return f'<td data-value="{escape(name)}">{_breakable(name)}{told}</td>'


def _breakable(name: str) -> str:
    """A name that a narrow column breaks behind its joints, not within a word.

    Examples
    --------
    >>> _breakable("answer_attention")
    'answer_<wbr>attention'
    """
    return re.sub(r"([_/=.-])(?=\w)", r"\1<wbr>", escape(name))


def _in_two(text: str) -> str:
    """A difference and its interval, each unbroken: a line where there is room, else two.

    Examples
    --------
    >>> _in_two("to oracle -25 (-75 to +0)")
    '<span>to oracle -25</span> <span>(-75 to +0)</span>'
    """
    value, bracket, interval = escape(text).partition(" (")
    return f"<span>{value}</span>" + (f" <span>({interval}</span>" if bracket else "")


def _text(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>'


def _bounds(entry: Entry) -> str:
    if entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.low:.0f} to {100 * entry.high:.0f}"


def _difference(found: Interval | None) -> str:
    value = "" if found is None else f"{100 * found[0]:.4f}"
    return f'<td data-value="{value}">{points(found)}</td>'


def _not_run(entry: Entry) -> str:
    return f"<small>{entry.not_run:,} not run</small>" if entry.not_run else ""
