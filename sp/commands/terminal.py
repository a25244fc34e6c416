"""What every command prints with: a progress bar on stderr, or a line now and then; JSON on stdout."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sp.commands.line import opt
from sp.errors import CONTROL, ConfigError, PromptError

AsJson = Annotated[bool, opt("--json", help="Print JSON instead of tables: one object, of a chat one for each turn.")]


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Any]:
    """A bar on stderr while a stage runs, which says no end without a total; off a terminal as `followed` has it."""
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

    Nothing is printed of work that is over by `FIRST_LINE`.
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
    """What is done of a task, and when the rest may be, in one line."""
    seconds = task.elapsed or 0.0
    done = f"{task.description}: {f'{task.percentage:.0f} % after ' if task.total else ''}{clock(seconds)}"
    share = task.percentage / 100
    return f"{done}, about {clock(seconds / share - seconds)} left" if task.total and 0 < share < 1 else done


def clock(seconds: float) -> str:
    """Seconds as a person reads them.

    Examples
    --------
    >>> clock(4.2), clock(75), clock(7300)
    ('4 s', '1 min 15 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


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

    Examples
    --------
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
