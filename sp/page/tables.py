"""Tables that sort by any column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sp.page.frame import asset
from sp.page.markup import Html, join, tag


@dataclass(frozen=True)
class Cell:
    """What stands in a cell and, where that is no number, what it is sorted by; an empty one was not measured."""

    shown: object
    value: float | str | None = None


def sort_script() -> str:
    """What makes the heads of `sortable` tables sort."""
    return asset("sort.js")


def sortable(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], words: Collection[str] = (), class_: str = ""
) -> Html:
    """A table that may be wider than the screen.

    `caption`: what a reader of the screen hears of it; `words`: heads of columns of words, which begin where their
    words do; the first always is one; `class_`: besides `sorts`.

    Examples
    --------
    >>> made = sortable("Times", ["stage", "s"], [[Cell("<read>"), Cell("1.50", 1.5)]])
    >>> '<td class="text">&lt;read&gt;</td><td data-value="1.5">1.50</td>' in made
    True
    """
    left = [place == 0 or head in words for place, head in enumerate(heads)]
    top = join(
        tag("th", tag("button", head, type="button"), scope="col", class_="text" if first else None)
        for head, first in zip(heads, left, strict=True)
    )
    body = join(
        (
            tag("tr", *(tag("td", one.shown, class_="text" if first else None, data_value=one.value)
                        for one, first in zip(row, left, strict=True)))
            for row in rows
        ),
        "\n",
    )  # fmt: skip
    table = tag("table", tag("thead", tag("tr", top)), tag("tbody", body), class_=f"sorts {class_}".strip(),
                aria_label=caption)  # fmt: skip
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Names and what they are."""
    return tag("dl", *(tag(kind, value) for pair in pairs for kind, value in zip(("dt", "dd"), pair, strict=True)))
