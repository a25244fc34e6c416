"""Results of sweeps on disk: JSON lines, only appended to, a run at a time, whole or not at all.

One schema, four kinds of line, told apart by `kind`:

========== ==================================================================================================
session    One process that wrote here: `session`, `sweep`, `sp`, `commit`, `date`, `device`, and the machine
           (`gpu`, `driver`, `nvrtc`, `cupy`, or `cpu`, `cores`, `python`, `numpy`).
row        One example in one cell: `run`, `cell` (index, -1 for the full prefill) and what was measured.
run        Closes the rows of a run: `run` (hash of `config`), `session`, `part` of the file, `seconds`, `rows`,
           `config` with the task and every option of every cell, `models` with file, sha256 and template hash by
           role.
failed     A run that ended in an error, which its next start tries again: `run`, `session`, `label`, `error`.
========== ==================================================================================================

Rows without their closing `run` line belong to a run that was cut off, and are ignored; of a run that two files hold,
one counts. DuckDB reads the files as they are, and must be told both, and to pass over a line that was torn:

    duckdb -c "WITH lines AS (
                   FROM read_json_auto('sp-sweep/quickstart/*.jsonl', union_by_name = true, ignore_errors = true))
               SELECT task, scorer, keep_ratio, count(correct) AS n, avg(correct) AS accuracy
               FROM (SELECT DISTINCT ON (run, cell, example) * FROM lines WHERE kind = 'row')
               WHERE run IN (SELECT run FROM lines WHERE kind = 'run') GROUP BY ALL ORDER BY ALL"
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from uuid import uuid4

import numpy as np

from sp import __version__
from sp.errors import ConfigError, short
from sp.json_lines import LIST, LONGEST_LINE, check, parse_object
from sp.kernels.machine import machine_facts
from sp.studies.sweep.row_fields import FAILED, SESSION, check_row, check_run

SCHEMA = 1
KINDS = ("session", "row", "run", "failed")
SUFFIXES = (".jsonl", ".jsonl.gz")
MOST_UNPACKED = 200
"""Times its size that a packed file may hold; rows have some twenty times."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What a set of result files holds.

    `sessions`: session lines by id; `runs`: closing lines of finished runs by hash; of a run that was done twice, the
    later in reading order; `rows`: rows of those runs by hash; `failed`: failure lines of runs that have not finished
    since; `places`: file and line of each row of a run and of its closing line, by hash.
    """

    sessions: dict[str, Row] = field(default_factory=dict)
    runs: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def checked(self) -> Results:
        """The same; ConfigError, with file and line, if a row or its run is not fit for a report."""
        for run, rows in self.rows.items():
            for row, where in zip(rows, self.places[run], strict=False):
                check_row(row, where)
            check(self.runs[run]["config"], {"cells": LIST}, f"{self.places[run][-1]}: config")
        return self

    def all_rows(self) -> Iterator[Row]:
        """Rows of every finished run."""
        for rows in self.rows.values():
            yield from rows


def session_line(sweep: str, commit: str | None, device: str) -> Row:
    """Who writes: code, machine and date. `device` is ``"cuda"`` or ``"cpu"``."""
    return {
        "schema": SCHEMA,
        "kind": "session",
        "session": uuid4().hex[:12],
        "sweep": sweep,
        "sp": __version__,
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        **machine_facts(device),
    }


def dump_line(value: Mapping[str, Any]) -> bytes:
    """One compact line. NumPy scalars become plain numbers; the floats of a row keep four significant digits."""
    digits = 4 if value["kind"] == "row" else 17

    def plain(item: Any) -> Any:
        if isinstance(item, np.generic):
            item = item.item()
        if isinstance(item, float):
            return float(f"{item:.{digits}g}") if np.isfinite(item) else None
        if isinstance(item, Mapping):
            return {key: plain(each) for key, each in item.items()}
        if isinstance(item, (list, tuple)):
            return [plain(each) for each in item]
        return str(item) if isinstance(item, Path) else item

    return (json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False) + "\n").encode()


class Store:
    """A result file open for appending, by one process at a time.

    Opening repairs the file: whatever a killed process left after the last finished run is cut off.

    `path`: made with its folder if missing; `session`: what `session_line` returned.

    Raises
    ------
    ConfigError
        Another process has the file open, or it holds something else than results.
    """

    def __init__(self, path: Path, session: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.session = path, session
        self._file: BinaryIO = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"{path} is being written by another sp sweep; wait for it, or use --shard") from None
        try:
            self._file.truncate(finished_bytes(path))
        except ConfigError:
            self._file.close()
            raise
        self._write([session])

    def add(
        self,
        run: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        seconds: float,
        config: Mapping[str, Any],
        models: Mapping[str, Any],
        part: str = "",
    ) -> None:
        """Append a finished run; returns when it is on the disk."""
        head = {"schema": SCHEMA, "kind": "row", "run": run}
        closing = {
            "schema": SCHEMA,
            "kind": "run",
            "run": run,
            "session": self.session["session"],
            "part": part,
            "seconds": seconds,
            "rows": len(rows),
            "config": config,
            "models": models,
        }
        self._write([*({**head, **row} for row in rows), closing])

    def fail(self, run: str, label: str, error: str) -> None:
        """Append a run that ended in an error."""
        session = self.session["session"]
        head = {"schema": SCHEMA, "kind": "failed", "run": run, "session": session}
        self._write([{**head, "label": label, "error": error}])

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._file.write(b"".join(map(dump_line, lines)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def finished_bytes(path: Path) -> int:
    """Length of the part of a file that holds whole runs."""
    good = at = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            at += len(raw)
            if raw.endswith(b"\n") and parse_line(raw, path, number)["kind"] != "row":
                good = at
    return good


def parse_line(raw: bytes, path: Path, number: int) -> Row:
    """A line of results; ConfigError if it is something else, or of another schema."""
    where = f"{path}, line {number}"
    try:
        line = parse_object(raw, where)
    except ConfigError as error:
        raise ConfigError(f"{error}; name a file that sp sweep wrote") from None
    if line.get("kind") not in KINDS:
        raise ConfigError(f"{where}: no result of sp sweep; name a file that sp sweep wrote")
    if line.get("schema") != SCHEMA:
        raise ConfigError(
            f"{where}: schema {short(line.get('schema'))}, but this version of sp reads schema {SCHEMA}; "
            "use the version that wrote it, or another folder"
        )
    return line


def result_files(folder: Path) -> list[Path]:
    """Result files in a folder, in order of name."""
    return sorted(path for path in folder.glob("*") if path.name.endswith(SUFFIXES) and path.is_file())


def read_results(paths: Iterable[Path]) -> Results:
    """Read result files, gzipped ones too; later files win where a run was done twice.

    Raises
    ------
    ConfigError
        A file cannot be read, holds something else, or is of another schema.
    """
    results = Results()
    for path in paths:
        pending: list[tuple[str, Row]] = []
        for number, raw in enumerate(raw_lines(path), 1):
            if not raw.endswith(b"\n"):
                break  # torn: its run did not finish
            line = parse_line(raw, path, number)
            kind, where = line["kind"], f"{path}, line {number}"
            if kind == "row":
                pending.append((where, line))
            elif kind == "session":
                check(line, SESSION, where)
                results.sessions[line["session"]] = line
                pending = []
            elif kind == "failed":
                check(line, FAILED, where)
                if line["run"] not in results.runs:
                    results.failed[line["run"]] = line
            else:
                check_run(line, results.sessions, where)
                run = line["run"]
                results.runs[run] = line
                results.rows[run] = [row for _, row in pending if row.get("run") == run]
                results.places[run] = [*(place for place, row in pending if row.get("run") == run), where]
                results.failed.pop(run, None)
                pending = []
    return results


def read_rows(path: Path) -> Iterator[Row]:
    """Rows that `sp eval` wrote, packed or not, fit for a report; ConfigError for the first line that is none."""
    for number, raw in enumerate(raw_lines(path), 1):
        where = f"{path}, line {number}"
        if raw.strip():
            yield check_row(parse_object(raw, where), where)


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, unpacked; ConfigError if it cannot be read, or is packed so as to fill the memory."""
    try:
        packed, size = path.name.endswith(".gz"), 0
        most = MOST_UNPACKED * path.stat().st_size + LONGEST_LINE
        with gzip.open(path) if packed else path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE + 1):
                size += len(raw)
                if len(raw) > LONGEST_LINE or (packed and size > most):
                    raise ConfigError(
                        f"{path}: a line of more than {LONGEST_LINE >> 20} MiB, or more packed than rows are"
                    )
                yield raw
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
