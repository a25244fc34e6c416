"""Forest plots: a line a strategy, its value and interval on one scale, in a table that a narrow screen can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sp.page.markup import Html, join, tag

Kind = Literal["full", "scorer", "control", "oracle"]
WIDTH = 100
MIDDLE = 5


@dataclass(frozen=True)
class Line:
    """A strategy's value and interval; None where nothing was measured. `n`: examples; the interval of one says
    nothing, so it is told and not drawn; `note`: what keeps it from being held against the others, if anything does."""

    name: str
    kind: Kind
    n: int
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """What the plot is of. `title`: such as ``right answers (%)``; `pattern`: how a value is written; `reference`:
    where a line is drawn: the full prefill's value."""

    title: str
    low: float
    high: float
    pattern: str = "{:.1f}"
    reference: float | None = None

    def at(self, value: float) -> float:
        """Place of a value, 0 to `WIDTH`; what lies beyond the ends stands there."""
        return WIDTH * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def forest(title: str, scale: Scale, lines: Sequence[Line]) -> Html:
    """The plot with its ticks, as a table."""
    ends = scale.low, (scale.low + scale.high) / 2, scale.high
    ticks = tag("span", *(tag("span", f"{value:g}") for value in ends), class_="ticks")
    head = tag("tr", tag("th", "strategy", scope="col", class_="text"), tag("th", ticks, scope="col"),
               tag("th", scale.title, scope="col"), tag("th", "n", scope="col"))  # fmt: skip
    rows = join((_row(scale, line) for line in lines), "\n")
    return tag("table", tag("caption", title, class_="text"), tag("thead", head), tag("tbody", rows), class_="forest")


def _row(scale: Scale, line: Line) -> Html:
    said = [line.kind] if line.kind in ("control", "oracle") else []
    kind = tag("small", " " + ", ".join([*said, *([line.note] if line.note else [])])) if said or line.note else ""
    told: object = "not run"
    if line.value is not None:
        ends = [scale.pattern.format(end) for end in (line.low, line.high) if end is not None]
        bounds = "one example" if line.n == 1 else " to ".join(ends)
        told = join([scale.pattern.format(line.value), tag("small", f" ({bounds})") if bounds else ""])
    cells = (
        tag("th", line.name, kind, scope="row", class_="text"),
        tag("td", _bar(scale, line), class_="bar"),
        tag("td", told),
        tag("td", f"{line.n:,}", tag("small", " example" + "s" * (line.n != 1), class_="narrow")),
    )
    return tag("tr", *cells, class_=line.kind + (" single" if line.n == 1 else ""))


def _bar(scale: Scale, line: Line) -> Html:
    """Interval and value; a line without length and with round ends is a dot, however the picture is stretched."""
    parts = []
    if scale.reference is not None:
        parts.append(_stroke(scale.at(scale.reference), scale.at(scale.reference), "reference", 0, 2 * MIDDLE))
    if line.n > 1 and line.low is not None and line.high is not None:
        parts.append(_stroke(scale.at(line.low), scale.at(line.high), "interval"))
    if line.value is not None:
        parts.append(_stroke(scale.at(line.value), scale.at(line.value), "dot"))
        if line.n == 1:
            parts.append(_stroke(scale.at(line.value), scale.at(line.value), "hollow"))
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {2 * MIDDLE}", preserveAspectRatio="none", aria_hidden="true")


def _stroke(x1: float, x2: float, name: str, y1: float = MIDDLE, y2: float = MIDDLE) -> Html:
    return tag("line", x1=f"{x1:.2f}", x2=f"{x2:.2f}", y1=y1, y2=y2, class_=name)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a scale round zero that hold all values."""
    most = max((abs(value) for value in values), default=0.0)
    for end in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
        if most <= end and most > 0:
            return -end, end
    end = max(10.0, 10.0 * -(-most // 10))
    return -end, end
