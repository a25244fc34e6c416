"""Tables on stdout within the width of a line: no head and no cell is ever cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from textwrap import fill
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sp.commands.line import opt
from sp.commands.terminal import text_width
from sp.errors import printable

Wide = Annotated[bool, opt("--wide", help="Show all columns of tables side by side, however long lines get.")]

PADDING = 2
"""Characters beside a cell."""
INTERVAL = "95 %"
"""Head of a column that holds the interval of the column before it."""
TEXT = 12
"""Characters to which a column of text is folded rather than that a column of numbers leave the table."""


def print_table(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    output: str,
    left: int,
    *,
    main: Collection[str] = (),
    wide: bool = False,
) -> list[str]:
    """A table for people, or with `output` "md" for a page.

    What a line has no room for: columns that say the same in every row are told above the table, and then only the
    `main` ones are shown, all others with `wide`. What has no room even so is folded, or stands in a further table.

    Parameters
    ----------
    heads, cells : sequences
    output : {"table", "md"}
    left : int
        First columns that are text; the others are numbers.
    main : collection of str
        Heads of columns that are shown in any case, all if empty; an interval by the head before it, as in
        ``"right 95 %"``.
    wide : bool
        Show all columns side by side.

    Returns
    -------
    list of str
        Heads that were shown.
    """
    cells = [[printable(cell) for cell in line] for line in cells]  # names and tasks come from files
    if output == "md":
        rule = ["---"] * left + ["---:"] * (len(heads) - left)
        print("\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells)))
        return list(heads)
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    shown, alike = list(range(len(heads))), dict[int, str]()
    room = max(text_width(), _total(widths)) if wide else text_width()
    if _total(widths) > room:
        alike = same_in_all(cells, left)
        shown = [number for number in shown if number not in alike]
    if main and _total(widths[number] for number in shown) > room:
        shown = [number for number in shown if _called(heads, number) in main]
    if alike:
        print(fill("; ".join(f"{heads[number]} {value}" for number, value in alike.items()), room))
    own = sum(number < left for number in shown)
    bounds = {place for place, number in enumerate(shown) if heads[number] == INTERVAL}
    for place, numbers in enumerate(column_groups([widths[number] for number in shown], own, room, bounds)):
        table = Table(box=None, pad_edge=False, padding=(0, PADDING, 0, 0))
        for at in (*range(own), *numbers):
            figure = at >= own
            head = escape(heads[shown[at]])
            table.add_column(head, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
        for line in cells:  # names of files and models may have brackets, which Rich takes for markup
            table.add_row(*(escape(line[shown[at]]) for at in (*range(own), *numbers)))
        if place:
            print()
        Console(highlight=False, width=room).print(table)
    if hidden := len(heads) - len(shown) - len(alike):
        print(f"({hidden} more column{'s' * (hidden > 1)}: --wide)")
    return [heads[number] for number in (*alike, *shown)]


def same_in_all(cells: Sequence[Sequence[str]], left: int) -> dict[int, str]:
    """Columns of text with one value in all rows that have any, and that value; at least one column stays.

    Examples
    --------
    >>> same_in_all([["vt", "full", "", "1"], ["vt", "tail", "top_p", "1"]], 3)
    {0: 'vt', 2: 'top_p'}
    >>> same_in_all([["vt", "1"]], 1), same_in_all([["vt", "1"], ["vt", "2"]], 1)
    ({}, {})
    """
    if len(cells) < 2:
        return {}
    found = {}
    for number in range(left):
        values = {line[number] for line in cells} - {""}
        if len(values) <= 1:
            found[number] = values.pop() if values else "-"
    if len(found) == left:
        del found[left - 1]
    return found


def column_groups(widths: Sequence[int], left: int, room: int, bounds: Collection[int] = ()) -> list[list[int]]:
    """Columns of numbers that stand side by side; those that a line has no room for make a further table.

    Parameters
    ----------
    widths : sequence of int
        Characters of the widest cell of each column.
    left : int
        First columns that are text: they stand in every table, and fold where they are longer than `TEXT`.
    room : int
        Characters of a line.
    bounds : collection of int
        Columns of intervals, each of the column before it, which it does not leave.

    Examples
    --------
    >>> column_groups([6, 10, 10, 10], 1, 80), column_groups([6, 10, 10, 10], 1, 32), column_groups([6], 1, 32)
    ([[1, 2, 3]], [[1, 2], [3]], [[]])
    >>> column_groups([6, 10, 10, 10], 1, 32, {3})
    [[1], [2, 3]]
    """
    parts: list[list[int]] = []
    for number in range(left, len(widths)):
        if number in bounds and number - 1 not in bounds and parts:
            parts[-1].append(number)
        else:
            parts.append([number])
    whole = _total(widths) <= room
    free = room - sum(min(width, TEXT) + PADDING for width in widths[:left])
    groups: list[list[int]] = [[]]
    for part in parts:
        taken = sum(widths[one] + PADDING for one in (*groups[-1], *part))
        if groups[-1] and taken > free and not whole:
            groups.append([])
        groups[-1] += part
    return groups


def _total(widths: Iterable[int]) -> int:
    """Characters of a line of so wide columns."""
    found = list(widths)
    return sum(found) + PADDING * len(found)


def _called(heads: Sequence[str], number: int) -> str:
    """Head of a column, behind that of the column before it where it is of an interval."""
    return f"{heads[number - 1]} {INTERVAL}" if heads[number] == INTERVAL and number else heads[number]
