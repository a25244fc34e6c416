"""`report.html` of evaluations whose summaries are lines already: perplexity, and questions turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp.evals.run import scorer_class
from sp.page.forest import Kind, Line, Scale, forest, spread
from sp.page.markup import Cell, Html, asset, page, sortable, tag
from sp.scoring.base import ModelFreeScorer

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class View:
    """What of a summary is drawn and listed.

    `value`, `low`, `high`: columns of what is drawn, and of its interval; `times`: what they are drawn times; `title`:
    of the scale; `pattern`: how a value is written; `columns`: heads of the table, and the columns under them; `name`:
    what a summary's line is called; `ends`, (float, float), optional: of the scale; else zero is its middle.
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


def _way(line: Summary) -> str:
    return str(line["way"]) if line["scorer"] == "full" else f"{line['way']}: {_strategy(line)}"


PREDICTED = View(
    "nll_change", "nll_change_low", "nll_change_high", 1, "nats a token more than in full (95 %)", "{:+.3f}",
    {"task": "task", "tokens": "tokens_asked", "keep": "keep_ratio", "kept": "realised_keep", "n": "n",
     "not run": "not_run", "perplexity": "perplexity", "nll": "nll", "KL": "kl", "same token": "agreement"},
    _strategy,
)  # fmt: skip
TURNS = View(
    "accuracy", "low", "high", 100, "right % (95 %)", "{:.0f}",
    {"kind": "kind", "tokens": "tokens_asked", "keep": "keep_ratio", "n": "n", "not run": "not_run",
     "right": "accuracy", "to full": "against_full", "evidence kept": "given_kept", "kept tokens": "kept_tokens",
     "first token (s)": "ttft_s", "x": "speedup"},
    _way, (0, 100),
)  # fmt: skip
NATURAL = View(
    "whole", "low", "high", 100, "evidence kept whole, % (95 %)", "{:.0f}",
    {"overlap": "overlap", "keep": "keep_ratio", "n": "n", "kept whole": "whole", "share of tokens": "recall",
     "rank": "rank", "scoring (s)": "score_s", "right": "accuracy"},
    _strategy, (0, 100),
)  # fmt: skip
WORDS = frozenset({"task", "kind", "overlap"})
GROUP = ("task", "kind", "overlap", "tokens_asked", "keep_ratio")
"""Lines that have these in common stand in one plot; the full prefill, which has no keep ratio, in each."""


def lines_page(title: str, lines: Sequence[Summary], view: View, note: str = "") -> str:
    """The page; all text of lines is escaped."""
    ratios = sorted({line["keep_ratio"] for line in lines if line["cell"] >= 0 and line["keep_ratio"] is not None})
    places = list(dict.fromkeys(tuple(line.get(name) for name in GROUP[:-1]) for line in lines))
    plots = []
    for place in places:
        there = [line for line in lines if tuple(line.get(name) for name in GROUP[:-1]) == place]
        for keep in ratios:
            mine = [line for line in there if line["cell"] < 0 or line["keep_ratio"] == keep]
            if any(line["cell"] >= 0 for line in mine):
                said = " · ".join(f"{part:,} tokens" if isinstance(part, int) else str(part) for part in place if part)
                plots.append(_plot(f"{said} · keep {keep:g}", mine, view))
    note_below = [tag("p", note, class_="note")] if note else []
    first, rest = plots[:4], plots[4:]
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
    drawn = []
    for line in lines:
        value, low, high = (_times(line.get(one), view.times) for one in (view.value, view.low, view.high))
        drawn.append(Line(view.name(line), _kind(line), line["n"], value, low, high))
    known = [value for one in drawn for value in (one.value, one.low, one.high) if value is not None]
    low, high = view.ends or spread(known)
    full = next((one.value for one in drawn if one.kind == "full"), None)
    return forest(title, Scale(view.title, low, high, view.pattern, full), drawn)


def _kind(line: Summary) -> Kind:
    if line["cell"] < 0:
        return "full"
    kind = scorer_class(line["scorer"]) if line["scorer"] != "full" else None
    if kind is None:
        return "scorer"
    return "oracle" if kind.oracle else "control" if issubclass(kind, ModelFreeScorer) else "scorer"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _table(lines: Sequence[Summary], view: View) -> Html:
    rows = [
        [Cell(view.name(line), view.name(line)), *(_cell(line.get(column)) for column in view.columns.values())]
        for line in lines
    ]
    return sortable("Every line", ["strategy", *view.columns], rows, WORDS)


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("", "")
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return Cell(shown, value)
