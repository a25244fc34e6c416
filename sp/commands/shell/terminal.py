"""What every command prints with: progress on stderr; JSON, CSV and tables on stdout, of which no cell is ever cut."""

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
from sp.commands.shell.line import opt
from sp.errors import CONTROL, ConfigError, PromptError, printable

if TYPE_CHECKING:
    from rich.progress import Progress, Task

AsJson = Annotated[bool, opt("--json", help="Print JSON instead of tables: one object, of a chat one for each turn.")]


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Any]:
    """A bar on stderr while a stage runs, which says no end without a total; off a terminal as `followed` has it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with followed(Progress(*columns, console=console, transient=True, disable=not console.is_terminal)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


FIRST_LINE, NEXT_LINES = 10.0, 30.0
"""Seconds after which a line says how far work is that nobody sees a bar of, and between that and further ones."""


@contextmanager
def followed(bar: Progress) -> Iterator[Progress]:
    """The bar, running; where it is disabled, for stderr is no terminal, a line now and then says how far it is.
    Nothing is printed of work that is over by `FIRST_LINE`."""
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
    """What is done of a task, and when the rest may be, in one line."""
    seconds = task.elapsed or 0.0
    done = f"{task.description}: {f'{task.percentage:.0f} % after ' if task.total else ''}{clock(seconds)}"
    share = task.percentage / 100
    return f"{done}, about {clock(seconds / share - seconds)} left" if task.total and 0 < share < 1 else done


def clock(seconds: float) -> str:
    """Seconds as a person reads them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


STANDARD_INPUT = Path("-")
MOST_BYTES = 256 << 20  # of a text: some 64 million tokens


def read_text(path: Path, option: str, *, piped: bool = False) -> str:
    """A UTF-8 text file named by an option, with `piped` also standard input by the name ``-``; or PromptError."""
    if piped and path == STANDARD_INPUT:
        return read_input(option)
    try:
        with path.open("rb") as file:
            return _text_of(file, str(path), option)
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror}; check the path given to {option}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from None


def _text_of(file: BinaryIO, name: str, option: str) -> str:
    """All of a file, line ends made one; PromptError for one that has more than any prompt, or no end."""
    with suppress(OSError):  # of what is read from memory
        mode = os.fstat(file.fileno()).st_mode
        if not file.isatty() and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            raise PromptError(f"{name} is a device, which may have no end; give {option} a text file")
    raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise PromptError(f"{name} has more than {MOST_BYTES >> 20} MiB; give {option} a shorter text")
    return raw.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_input(option: str) -> str:
    """Standard input to its end, as UTF-8 text; PromptError where there is none."""
    if sys.stdin is None:
        raise PromptError(f"standard input is closed; give {option} a file, or pipe a text in")
    if sys.stdin.isatty():
        print("sp: reading the text from the terminal; end it with Ctrl-D on a line of its own", file=sys.stderr)
    try:
        return _text_of(sys.stdin.buffer, "standard input", option)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise PromptError(f"standard input is not UTF-8 text (byte {error.start}); convert it first") from None
        raise PromptError(f"cannot read standard input: {error}; give {option} a file") from None


def check_folder(folder: Path | None, option: str) -> None:
    """ConfigError if nothing can be written below a folder, which need not exist: told before the work, not after it.

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


def check_file(path: Path | None, option: str) -> None:
    """ConfigError for a file that cannot be written, told before the work."""
    if path is not None and path.is_dir():
        raise ConfigError(f"{path} is a folder; give {option} the name of a file")
    check_folder(path and path.parent, option)


def print_json(value: dict[str, Any]) -> None:
    """One indented JSON object on stdout."""
    print(as_json_text(value, indent=1))


def as_json_text(value: Any, indent: int | None = None) -> str:
    r"""JSON that steers no terminal: beside what JSON must spell out also U+007F to U+009F.

    >>> print(as_json_text("\x1b[1m, \x9b1m, é"))
    "\u001b[1m, \u009b1m, é"
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def text_width() -> int:
    """Characters of a line of the terminal; 80 where there is none, unless ``COLUMNS`` says otherwise."""
    return shutil.get_terminal_size((80, 24)).columns


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the columns of all of them."""
    writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)


Wide = Annotated[bool, opt("--wide", help="Show all columns of tables side by side, however long lines get.")]

Column = tuple[str, str | Callable[[Mapping[str, Any]], str]]
"""A head, and what stands under it of a row: a pattern with names of the row, or what makes the text."""
INTERVAL = "95 %"  # head of a column that holds the interval of the column before it


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

    `left`: first columns that are text; the others are numbers; `main`: heads of columns that are shown in any case,
    all if empty; an interval by the head before it, as in ``"right 95 %"``; `wide`: show all columns side by side;
    Returns list of str: heads that were shown.
    """
    from rich.console import Console

    cells = [[printable(cell) for cell in line] for line in cells]  # names and tasks come from files
    if output == "md":
        rule = ["---"] * left + ["---:"] * (len(heads) - left)
        print("\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells)))
        return list(heads)
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    shown, alike = list(range(len(heads))), dict[int, str]()
    room = max(text_width(), total_width(widths)) if wide else text_width()
    if total_width(widths) > room:
        alike = same_in_all(cells, left)
        shown = [number for number in shown if number not in alike]
    if main and total_width(widths[number] for number in shown) > room:
        shown = [number for number in shown if _called(heads, number) in main]
    if alike:
        print(fill("; ".join(f"{heads[number]} {value}" for number, value in alike.items()), room))
    own = sum(number < left for number in shown)
    bounds = {place for place, number in enumerate(shown) if heads[number] == INTERVAL}
    table = ColumnTable([heads[number] for number in shown], [], own, bounds)
    for line in cells:
        table.add_row(*(line[number] for number in shown))
    Console(highlight=False, width=room).print(table)
    if hidden := len(heads) - len(shown) - len(alike):
        print(f"({hidden} more column{'s' * (hidden > 1)}: --wide)")
    return [heads[number] for number in (*alike, *shown)]


def cells_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of rows."""
    made = [[part.format_map(row) if isinstance(part, str) else part(row) for _, part in columns] for row in rows]
    return [head for head, _ in columns], made


def same_in_all(cells: Sequence[Sequence[str]], left: int) -> dict[int, str]:
    """Columns of text with one value in all rows that have any, and that value; at least one column stays.

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


def _called(heads: Sequence[str], number: int) -> str:
    """Head of a column, behind that of the column before it where it is of an interval."""
    return f"{heads[number - 1]} {INTERVAL}" if heads[number] == INTERVAL and number else heads[number]
