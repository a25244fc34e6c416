"""What every command prints with: a progress bar on stderr, JSON on stdout."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
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


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Any]:
    """A bar on stderr while a stage runs; nothing where stderr is no terminal."""
    columns = (TextColumn("{task.description:>16}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


def read_text(path: Path, option: str) -> str:
    """A UTF-8 text file named by an option, or PromptError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror}; check the path given to {option}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from None


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
    table = Table(box=None)
    for number, head in enumerate(heads):
        table.add_column(escape(head), justify="left" if number < left else "right")
    for line in cells:
        table.add_row(*map(escape, line))  # names of files and models may have brackets, which Rich takes for markup
    wide_console().print(table)
