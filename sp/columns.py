"""Tables for terminals of any width: text folds, numbers stay whole, columns without room go into a further table.

Example
-------
>>> from rich.console import Console
>>> table = ColumnTable(["stage", "seconds", "tokens"], [["target prefill", "14.300", "131,072"]], text_columns=1)
>>> Console(width=26).print(table)
stage           seconds
target prefill   14.300
<BLANKLINE>
stage            tokens
target prefill  131,072
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

PADDING = 2  # characters between a cell and the next column
FOLDED = 12  # characters to which a text column is folded before a number column moves to the next table


@dataclass(frozen=True)
class ColumnTable:
    """A table without lines for a `rich` console, whose width decides which columns are side by side.

    Attributes
    ----------
    heads : sequence of str
    rows : list of sequences of str or Text
        Strings are plain: brackets in names of files and models are no markup.
    text_columns : int
        The first columns, which are text and part of every table; the others are numbers.
    bounds : collection of int
        Columns of intervals; each stays next to the column before it.
    head_style : str
        Style of the heads, such as ``"bold"``.
    """

    heads: Sequence[str]
    rows: list[Sequence[str | Text]]
    text_columns: int
    bounds: Collection[int] = ()
    head_style: str = ""

    def add_row(self, *cells: str | Text) -> None:
        """Append a row with a cell for every head."""
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        widths = [max(map(_width, column)) for column in zip(self.heads, *self.rows, strict=True)]
        for place, numbers in enumerate(column_groups(widths, self.text_columns, options.max_width, self.bounds)):
            table = Table(box=None, pad_edge=False, padding=(0, PADDING, 0, 0), header_style=self.head_style)
            columns = (*range(self.text_columns), *numbers)
            for column in columns:
                is_number = column >= self.text_columns
                table.add_column(
                    Text(self.heads[column]), justify="right" if is_number else "left", no_wrap=is_number,
                    overflow="fold",
                )  # fmt: skip
            for row in self.rows:
                # `Text`, as rich would read brackets in a string as markup
                table.add_row(*(cell if isinstance(cell := row[column], Text) else Text(cell) for column in columns))
            if place:
                yield ""
            yield table


def column_groups(widths: Sequence[int], text_columns: int, room: int, bounds: Collection[int] = ()) -> list[list[int]]:
    """Split the number columns of a table into groups that each fit next to its text columns.

    Parameters
    ----------
    widths : sequence of int
        Characters of the widest cell of each column.
    text_columns : int
        Number of text columns, which come first. They are part of every group and fold to `FOLDED` characters.
    room : int
        Characters of a line.
    bounds : collection of int
        Columns of intervals; each stays in the group of the column before it.

    Examples
    --------
    >>> column_groups([6, 10, 10, 10], 1, 80), column_groups([6, 10, 10, 10], 1, 32), column_groups([6], 1, 32)
    ([[1, 2, 3]], [[1, 2], [3]], [[]])
    >>> column_groups([6, 10, 10, 10], 1, 32, {3})
    [[1], [2, 3]]
    """
    parts: list[list[int]] = []
    for column in range(text_columns, len(widths)):
        if column in bounds and column - 1 not in bounds and parts:
            parts[-1].append(column)
        else:
            parts.append([column])
    everything_fits = total_width(widths) <= room
    free = room - sum(min(width, FOLDED) + PADDING for width in widths[:text_columns])
    groups: list[list[int]] = [[]]
    for part in parts:
        needed = sum(widths[column] + PADDING for column in (*groups[-1], *part))
        if groups[-1] and needed > free and not everything_fits:
            groups.append([])
        groups[-1] += part
    return groups


def _width(cell: str | Text) -> int:
    return max(map(len, str(cell).split("\n")))


def total_width(widths: Iterable[int]) -> int:
    """Return the width in characters of a line with columns of these widths."""
    sizes = list(widths)
    return sum(sizes) + PADDING * len(sizes)
