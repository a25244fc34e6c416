"""What every command prints with: a progress bar on stderr, JSON on stdout."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sp.errors import ConfigError, PromptError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]

PADDING = 2
"""Characters beside a cell."""
INTERVAL = "95 %"
"""Head of a column that holds the interval of the column before it."""
TEXT = 12
"""Characters to which a column of text is folded rather than that a column of numbers leave the table."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Any]:
    """A bar on stderr while a stage runs; nothing where stderr is no terminal."""
    columns = (TextColumn("{task.description:>16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


STANDARD_INPUT = Path("-")


def read_text(path: Path, option: str, *, piped: bool = False) -> str:
    """A UTF-8 text file named by an option, with `piped` also standard input by the name ``-``; or PromptError."""
    if piped and path == STANDARD_INPUT:
        return read_input(option)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror}; check the path given to {option}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from None


def read_input(option: str) -> str:
    """Standard input to its end, as UTF-8 text; PromptError where there is none."""
    if sys.stdin is None:
        raise PromptError(f"standard input is closed; give {option} a file, or pipe a text in")
    if sys.stdin.isatty():
        print("sp: reading the text from the terminal; end it with Ctrl-D on a line of its own", file=sys.stderr)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise PromptError(f"standard input is not UTF-8 text (byte {error.start}); convert it first") from None
        raise PromptError(f"cannot read standard input: {error}; give {option} a file") from None


def check_folder(folder: Path | None, option: str) -> None:
    """ConfigError if nothing can be written below a folder, which need not exist: told before the work, not after it.

    Examples
    --------
    >>> check_folder(Path("/dev/null/results"), "--record")
    Traceback (most recent call last):
    sp.errors.ConfigError: cannot write below /dev/null/results; check the path given to --record
    """
    if folder is None:
        return
    absolute = Path(os.path.abspath(folder))
    nearest = next((one for one in (absolute, *absolute.parents) if os.path.exists(one)), absolute)
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigError(f"cannot write below {folder}; check the path given to {option}")


def print_json(value: dict[str, Any]) -> None:
    """One indented JSON object on stdout."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def wide_console() -> Console:
    """For tables on stdout: a pipe or a log has no width to keep to."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the columns of all of them."""
    writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)


def print_table(heads: Sequence[str], cells: Sequence[Sequence[str]], output: str, left: int) -> None:
    """A table for people, or with `output` "md" for a page; the first `left` columns are text, the others numbers."""
    if output == "md":
        rule = ["---"] * left + ["---:"] * (len(heads) - left)
        print("\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells)))
        return
    console = wide_console()
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    bounds = {number for number, head in enumerate(heads) if head == INTERVAL}
    for place, numbers in enumerate(column_groups(widths, left, console.width, bounds)):
        table = Table(box=None)
        for number in (*range(left), *numbers):
            figure = number >= left
            table.add_column(
                escape(heads[number]), justify="right" if figure else "left", no_wrap=figure, overflow="fold"
            )
        for line in cells:  # names of files and models may have brackets, which Rich takes for markup
            table.add_row(*(escape(line[number]) for number in (*range(left), *numbers)))
        if place:
            console.print()
        console.print(table)


def column_groups(widths: Sequence[int], left: int, room: int, bounds: Collection[int] = ()) -> list[list[int]]:
    """Columns of numbers that stand side by side; those that a terminal has no room for make a further table.

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
        if number in bounds and parts:
            parts[-1].append(number)
        else:
            parts.append([number])
    whole = sum(widths) + PADDING * len(widths) <= room
    free = room - sum(min(width, TEXT) + PADDING for width in widths[:left])
    groups: list[list[int]] = [[]]
    for part in parts:
        taken = sum(widths[one] + PADDING for one in (*groups[-1], *part))
        if groups[-1] and taken > free and not whole:
            groups.append([])
        groups[-1] += part
    return groups
