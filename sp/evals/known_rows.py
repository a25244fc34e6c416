"""Rows of results that a file has already, so that what was killed goes on where it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.run import Row
from sp.json_lines import ATOM, check, parse_object

Key = tuple[Any, ...]


def known_rows(
    path: Path,
    models: Mapping[str, Any],
    names: Sequence[str],
    key_of: Callable[[Mapping[str, Any]], Key],
    optional: Sequence[str] = (),
) -> dict[Key, Row]:
    """Rows of a file that are of these models, by key; a last line that was cut off is taken off the file.

    Rows of other commands, and of other models, are passed over.

    `models`: what the column ``models`` of the rows must be; `names`, `optional`: columns of which a key is made: that
    a row must have, and that it may have; `key_of`: what tells a row from others.

    Raises
    ------
    ConfigError
        For a line that is no JSON object.
    """
    found: dict[Key, Row] = {}
    with path.open("r+b") as file:
        whole, number = 0, 0
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(whole)
                break
            whole, number = whole + len(line), number + 1
            where = f"{path}, line {number}"
            try:
                row = parse_object(line, where)
            except ConfigError as error:
                told = str(error).removeprefix(where).lstrip(": ")
                raise ConfigError(f"{where}: no row of results ({told}); name another file with --out") from None
            if row.get("models") == models and all(name in row for name in names):
                check(row, dict.fromkeys((*names, *optional), ATOM.optional), where)
                found[key_of(row)] = row
    return found
