"""Forest plots: a row per strategy with value and interval on a common scale, as a table that fits narrow screens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sp.page.markup import Html, join, tag

Kind = Literal["full", "scorer", "control", "oracle"]
WIDTH = 100  # of a picture, in its own units
MIDDLE = 5  # half of its height


@dataclass(frozen=True)
class ForestRow:
    """A strategy in a forest plot.

    Attributes
    ----------
    name : str
    kind : {"full", "scorer", "control", "oracle"}
    n : int
        Number of examples. The interval of a single one says nothing and is not drawn.
    value, low, high : float, optional
        Value and interval; None if not measured.
    note : str
        Reason why it is not comparable with the others; empty if it is.
    """

    name: str
    kind: Kind
    n: int
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """Scale of a forest plot.

    Attributes
    ----------
    title : str
        Quantity and unit, such as ``right answers (%)``.
    low, high : float
        Ends of the scale.
    pattern : str
        Format of a value.
    reference : float, optional
        Value of the full prefill, which is drawn as a vertical line.
    """

    title: str
    low: float
    high: float
    pattern: str = "{:.1f}"
    reference: float | None = None

    def position(self, value: float) -> float:
        """Return the horizontal position of a value, from 0 to `WIDTH`; values beyond an end are drawn there."""
        return WIDTH * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def forest(title: str, scale: Scale, rows: Sequence[ForestRow]) -> Html:
    """Return the plot with its ticks, as a table."""
    ends = scale.low, (scale.low + scale.high) / 2, scale.high
    ticks = tag("span", *(tag("span", f"{value:g}") for value in ends), class_="ticks")
    head = tag("tr", tag("th", "strategy", scope="col", class_="text"), tag("th", ticks, scope="col"),
               tag("th", scale.title, scope="col"), tag("th", "n", scope="col"))  # fmt: skip
    body = join((_row(scale, row) for row in rows), "\n")
    return tag("table", tag("caption", title, class_="text"), tag("thead", head), tag("tbody", body), class_="forest")


def _row(scale: Scale, row: ForestRow) -> Html:
    remarks: list[str] = [row.kind] if row.kind in ("control", "oracle") else []
    remarks += [row.note] if row.note else []
    figures: object = "not run"
    if row.value is not None:
        ends = [scale.pattern.format(end) for end in (row.low, row.high) if end is not None]
        bounds = "one example" if row.n == 1 else " to ".join(ends)
        figures = join([scale.pattern.format(row.value), tag("small", f" ({bounds})") if bounds else ""])
    cells = (
        tag("th", row.name, tag("small", " " + ", ".join(remarks)) if remarks else "", scope="row", class_="text"),
        tag("td", _bar(scale, row), class_="bar"),
        tag("td", figures),
        tag("td", f"{row.n:,}", tag("small", " example" + "s" * (row.n != 1), class_="narrow")),
    )
    return tag("tr", *cells, class_=row.kind + (" single" if row.n == 1 else ""))


def _bar(scale: Scale, row: ForestRow) -> Html:
    """Draw interval and value of a row."""
    parts = []
    if scale.reference is not None:
        reference = scale.position(scale.reference)
        parts.append(_stroke(reference, reference, "reference", 0, 2 * MIDDLE))
    if row.n > 1 and row.low is not None and row.high is not None:
        parts.append(_stroke(scale.position(row.low), scale.position(row.high), "interval"))
    if row.value is not None:
        # A line without length and with round ends is a dot, even if the picture is stretched; a circle would not be.
        value = scale.position(row.value)
        parts.append(_stroke(value, value, "dot"))
        if row.n == 1:
            parts.append(_stroke(value, value, "hollow"))
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {2 * MIDDLE}", preserveAspectRatio="none", aria_hidden="true")


def _stroke(x1: float, x2: float, name: str, y1: float = MIDDLE, y2: float = MIDDLE) -> Html:
    return tag("line", x1=f"{x1:.2f}", x2=f"{x2:.2f}", y1=y1, y2=y2, class_=name)


def symmetric_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return round ends of a scale that is symmetric about zero and contains all values."""
    most = max((abs(value) for value in values), default=0.0)
    for end in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
        if most <= end and most > 0:
            return -end, end
    end = max(10.0, 10.0 * -(-most // 10))
    return -end, end
