"""Input and output of all commands: text files, progress on stderr; JSON, CSV and tables on stdout."""

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from sp.columns import ColumnTable, total_width
from sp.commands.shell.parser import opt
from sp.errors import CONTROL, PromptError, printable

if TYPE_CHECKING:
    from rich.progress import Progress, Task

AsJson = Annotated[bool, opt("--json", help="Print JSON in place of tables: one object; sp chat prints one per turn.")]


@contextmanager
def progress_bar(stage: str, total: int | None) -> Iterator[Any]:
    """Show a bar on stderr while a stage runs; without a terminal print lines, see `followed`.

    `total`: units of work; None if unknown. Yields a function that takes the number of further units done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with followed(Progress(*columns, console=console, transient=True, disable=not console.is_terminal)) as bar:
        task = bar.add_task(stage, total=total)
        yield lambda done: bar.advance(task, done)


FIRST_LINE, NEXT_LINES = 10.0, 30.0
"""Seconds until the first line about progress that no terminal shows as a bar, and between further lines."""


@contextmanager
def followed(bar: Progress) -> Iterator[Progress]:
    """Run a bar; if it is disabled because stderr is no terminal, print a line about its tasks now and then.

    Work that ends within `FIRST_LINE` seconds prints nothing.
    """
    over = threading.Event()

    def follow() -> None:
        wait = FIRST_LINE
        while not over.wait(wait):
            for task in bar.tasks:
                print(f"sp: {how_far(task)}", file=sys.stderr, flush=True)
            wait = NEXT_LINES

    lines = threading.Thread(target=follow, name="sp progress", daemon=True)
    with bar:
        if bar.disable:
            lines.start()
        try:
            yield bar
        finally:
            over.set()
            if bar.disable:
                lines.join()  # no line comes after the results


def how_far(task: Task) -> str:
    """Return one line with the share of a task that is done, its time so far and the time left."""
    seconds = task.elapsed or 0.0
    done = f"{task.description}: {f'{task.percentage:.0f} % after ' if task.total else ''}{clock(seconds)}"
    share = task.percentage / 100
    return f"{done}, about {clock(seconds / share - seconds)} left" if task.total and 0 < share < 1 else done


def clock(seconds: float) -> str:
    """Format a duration, such as ``2 min 05 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


STANDARD_INPUT = Path("-")
MOST_BYTES = 256 << 20  # of a text: some 64 million tokens


def read_text(path: Path, option: str, *, piped: bool = False, keep_offsets: bool = False) -> str:
    """Read a UTF-8 text file that an option names; PromptError if it cannot be read.

    Line ends become LF, so that a text is the same prompt wherever it was written. `keep_offsets`: they stay, so that
    results can refer to bytes of the file. `piped`: the name ``-`` stands for standard input.
    """
    if piped and path == STANDARD_INPUT:
        return read_input(option, keep_offsets)
    try:
        with path.open("rb") as file:
            return _decode(file, str(path), option, keep_offsets)
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror}; check the path given to {option}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from None


def _decode(file: BinaryIO, name: str, option: str, keep_offsets: bool) -> str:
    """Read and decode all of a file; PromptError if it is a device, or larger than any prompt."""
    with suppress(OSError):  # a stream in memory has no descriptor
        mode = os.fstat(file.fileno()).st_mode
        if not file.isatty() and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            raise PromptError(f"{name} is a device, and reading it may never end; give {option} a text file")
    raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise PromptError(f"{name} has more than {MOST_BYTES >> 20} MiB; give {option} a shorter text")
    text = raw.decode("utf-8")
    return text if keep_offsets else text.replace("\r\n", "\n").replace("\r", "\n")


def read_input(option: str, keep_offsets: bool = False) -> str:
    """Read standard input to its end as UTF-8 text; PromptError if it is closed. `keep_offsets` as for `read_text`."""
    if sys.stdin is None:
        raise PromptError(f"standard input is closed; give {option} a file, or pipe a text into the command")
    if sys.stdin.isatty():
        print("sp: reading the text from the terminal; end it with Ctrl-D on a line of its own", file=sys.stderr)
    try:
        return _decode(sys.stdin.buffer, "standard input", option, keep_offsets)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise PromptError(f"standard input is not UTF-8 text (byte {error.start}); convert it first") from None
        raise PromptError(f"cannot read standard input: {error}; give {option} a file") from None


def print_json(value: dict[str, Any]) -> None:
    """Print one indented JSON object on stdout."""
    print(as_json_text(value, indent=1))


def as_json_text(value: Any, indent: int | None = None) -> str:
    r"""Format JSON without control characters of terminals: U+007F to U+009F are escaped, too.

    >>> print(as_json_text("\x1b[1m, \x9b1m, é"))
    "\u001b[1m, \u009b1m, é"
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def text_width() -> int:
    """Return the width of the terminal in characters; without one that of ``COLUMNS``, or 80."""
    return shutil.get_terminal_size((80, 24)).columns


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV on stdout, with every column that any row has."""
    writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)


Wide = Annotated[
    bool, opt("--wide", help="Show all columns of tables side by side, whatever the width of the terminal.")
]

Column = tuple[str, str | Callable[[Mapping[str, Any]], str]]
"""Head of a column and its cells: a format string with keys of a row, or a function from row to text."""
INTERVAL = "95 %"  # head of a column that holds the interval of the column before it


def print_table(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    output: str,
    text_columns: int,
    *,
    main: Collection[str] = (),
    wide: bool = False,
) -> list[str]:
    """Print a table for the terminal, or for Markdown with `output` ``"md"``. Cells are never truncated.

    If a line is too narrow, columns of text with the same value in every row are printed above the table, then only
    the columns of `main` stay. If that does not suffice either, text folds and columns go into a further table.

    Parameters
    ----------
    text_columns : int
        The first columns, which are text; the others are numbers.
    main : collection of str
        Heads of columns that are always shown; all if empty. An interval is named after the column before it, as in
        ``"right 95 %"``.
    wide : bool
        Show all columns side by side.

    Returns
    -------
    list of str
        Heads of the columns that were printed.
    """
    from rich.console import Console

    cells = [[printable(cell) for cell in line] for line in cells]  # names and tasks come from files
    if output == "md":
        rule = ["---"] * text_columns + ["---:"] * (len(heads) - text_columns)
        print("\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells)))
        return list(heads)
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    columns, alike = list(range(len(heads))), dict[int, str]()
    room = max(text_width(), total_width(widths)) if wide else text_width()
    if total_width(widths) > room:
        alike = same_in_all(cells, text_columns)
        columns = [number for number in columns if number not in alike]
    if main and total_width(widths[number] for number in columns) > room:
        columns = [number for number in columns if _column_name(heads, number) in main]
    if alike:
        print(fill("; ".join(f"{heads[number]} {value}" for number, value in alike.items()), room))
    texts = sum(number < text_columns for number in columns)
    bounds = {place for place, number in enumerate(columns) if heads[number] == INTERVAL}
    table = ColumnTable([heads[number] for number in columns], [], texts, bounds)
    for line in cells:
        table.add_row(*(line[number] for number in columns))
    Console(highlight=False, width=room).print(table)
    if hidden := len(heads) - len(columns) - len(alike):
        print(f"({hidden} more column{'s' * (hidden > 1)}: --wide)")
    return [heads[number] for number in (*alike, *columns)]


def cells_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of a table of rows."""
    cells = [[part.format_map(row) if isinstance(part, str) else part(row) for _, part in columns] for row in rows]
    return [head for head, _ in columns], cells


def same_in_all(cells: Sequence[Sequence[str]], text_columns: int) -> dict[int, str]:
    """Return text columns that have one value in all rows that have any, and that value, but never all columns.

    >>> same_in_all([["vt", "full", "", "1"], ["vt", "tail", "top_p", "1"]], 3)
    {0: 'vt', 2: 'top_p'}
    >>> same_in_all([["vt", "1"]], 1), same_in_all([["vt", "1"], ["vt", "2"]], 1)
    ({}, {})
    """
    if len(cells) < 2:
        return {}
    alike = {}
    for number in range(text_columns):
        values = {line[number] for line in cells} - {""}
        if len(values) <= 1:
            alike[number] = values.pop() if values else "-"
    if len(alike) == text_columns:
        del alike[text_columns - 1]  # a table needs a column that names its rows
    return alike


def _column_name(heads: Sequence[str], number: int) -> str:
    """Return the head of a column; for an interval with the head of the column before it."""

    return f"{heads[number - 1]} {INTERVAL}" if heads[number] == INTERVAL and number else heads[number]
