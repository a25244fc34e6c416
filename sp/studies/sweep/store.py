"""Results of sweeps on disk: JSON lines, to which whole runs are appended.

One schema, four kinds of line, distinguished by `kind`:

========== ==================================================================================================
session    A process that wrote here: `session`, `sweep`, `sp`, `commit`, `date`, `device`, and the machine
           (`gpu`, `driver`, `nvrtc`, `cupy`, or `cpu`, `cores`, `python`, `numpy`).
row        An example in a cell: `run`, `cell` (index, -1 for the full prefill) and the measurements.
run        Closes the rows of a run: `run` (hash of `config`), `session`, `part` of the file, `seconds`, `rows`,
           `config` with the task and every option of every cell, `models` with file, sha256 and template hash by
           role. For a run of only the cells that earlier runs lacked: `completes`, the hashes of those runs, and
           `cell_set`, the hash of all cells together.
failed     A run that ended in an error and is tried again at the next start: `run`, `session`, `label`, `error`.
========== ==================================================================================================

Rows without a closing `run` line belong to an interrupted run and are ignored; a run that is in two files counts once.
DuckDB reads the files directly; the query below applies both rules and ignores an incomplete line:

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
from sp.evals.run import COLUMNS, RESULTS
from sp.evals.run import Row as Row
from sp.json_lines import (
    ATOM,
    LIST,
    LONGEST_LINE,
    OBJECT,
    TEXT,
    FieldType,
    check,
    check_each,
    number,
    parse_object,
    whole,
)
from sp.kernels.machine import machine_facts
from sp.values import whole as whole_of


def is_int(value: object) -> bool:
    """Return True if a value is a whole number of 64 bits, as seeds are."""
    return (number := whole_of(value)) is not None and abs(number) < 1 << 63


ROW: Mapping[str, FieldType] = {
    "task": TEXT,
    "example": TEXT,
    "tokens_asked": whole(),
    "cell": whole(-1),
    "scorer": TEXT,
    "selector": TEXT,
    "status": TEXT,
    "keep_ratio": number(0, 1),
}
OPTIONAL: Mapping[str, FieldType] = {
    **dict.fromkeys((*COLUMNS, "options", "thinking", "reasoning_effort", "decode"), ATOM.optional),
    **{name: number().optional for name in (*RESULTS, "prompt_tokens") if name not in ("answer", "correct")},
    **{name: number(0, 1).optional for name in ("depth", "asked_depth", "needle_recall", "realised_keep")},
    "keep_ratio": number(0, 1),
    "seed": FieldType("a whole number", is_int, required=False),
    "decode": TEXT.optional,
    "pair": FieldType(TEXT.words, lambda value: isinstance(value, str), required=False),
    "given_kept": FieldType("true or false", lambda value: value in (True, False), required=False),
    "ttft_s": number(0).optional,
    "models": OBJECT.optional,
}
READ: Mapping[str, FieldType] = {
    "correct": FieldType("0 or 1", lambda value: type(value) in (int, bool) and value in (0, 1))
}
"""Fields of answered rows."""
MODEL: Mapping[str, FieldType] = {"file": TEXT, "sha256": TEXT, "rope": TEXT.optional}
SESSION: Mapping[str, FieldType] = {
    "session": TEXT,
    "sweep": TEXT,
    "date": TEXT,
    **dict.fromkeys(("commit", "gpu", "cpu", "driver"), TEXT.optional),
    "cores": ATOM.optional,
}
RUN: Mapping[str, FieldType] = {
    "run": TEXT,
    "session": TEXT,
    "config": OBJECT,
    "models": OBJECT,
    **dict.fromkeys(("part", "cell_set"), TEXT.optional),
    "seconds": number(0),
}
CONFIG: Mapping[str, FieldType] = {"tokens": whole(1), "count": whole(1), "cells": LIST}
FAILED: Mapping[str, FieldType] = {"run": TEXT}


def check_row(row: Row, where: str) -> Row:
    """Return the row; ConfigError for the first field that is missing or wrong, so that no report could be made.

    >>> check_row({"task": "needle", "example": 3}, "rows.jsonl, line 4")
    Traceback (most recent call last):
    sp.errors.ConfigError: rows.jsonl, line 4: example must be a text of at most 1000 characters, not a number
    """
    check(row, ROW, where)
    check(row, OPTIONAL, where)
    if row["status"] == "ok":
        if "whole" in row and row.get("correct") is None:
            raise ConfigError(
                f"{where}: this row of task natural has no answer, which a report needs; sweep it with answers: true"
            )
        check(row, READ, where)
    if row["cell"] < 0 and row["keep_ratio"] != 1:
        raise ConfigError(f"{where}: cell -1 is the full prefill, so its keep_ratio must be 1")
    check_models(row.get("models") or {}, f"{where}: models")
    return row


def check_cells(config: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError unless a stored configuration has the fields from which the work of its run is estimated."""
    check(config, CONFIG, where)
    for cell in config["cells"]:
        check({"cell": cell}, {"cell": OBJECT}, where)
        check(cell, {"scorer": OBJECT, "keep_ratio": number(0, 1)}, f"{where}: cell")
        check(cell["scorer"], {"name": TEXT}, f"{where}: cell: scorer")


def check_run(line: Mapping[str, Any], sessions: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError unless a line closes a run of a known session."""
    check(line, RUN, where)
    if line["session"] not in sessions:
        raise ConfigError(f"{where}: the session of this run has no line before it; name a file that sp sweep wrote")
    check({"completes": line.get("completes", [])}, {"completes": LIST}, where)
    files = line["config"].get("files", {})
    check({"files": files}, {"files": OBJECT}, f"{where}: config")
    check_each(files, TEXT, f"{where}: config: files")
    check_models(line["models"], f"{where}: models")


def check_models(models: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError unless an object has the file and SHA-256 of each model."""
    check_each(models, OBJECT, where)
    for role, facts in models.items():
        check(facts, MODEL, f"{where}: {role}")


SCHEMA = 1
KINDS = ("session", "row", "run", "failed")
SUFFIXES = (".jsonl", ".jsonl.gz")
MOST_UNPACKED = 200  # limit of unpacked over packed size, against gzip bombs; rows have a ratio of about twenty


@dataclass(frozen=True)
class SweepResults:
    """Contents of a set of result files.

    Attributes
    ----------
    sessions : dict
        Session lines by id.
    runs : dict
        Closing lines by hash of the run; the later one if a run was done twice.
    rows : dict
        Rows by hash of the run.
    failed : dict
        Lines by hash of runs that failed and did not finish later.
    places : dict
        File and line of each row, then of the closing line, by hash of the run.
    """

    sessions: dict[str, Row] = field(default_factory=dict)
    runs: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def checked(self) -> SweepResults:
        """Return these results; ConfigError, with file and line, if a row or its run is not fit for a report."""
        for run, rows in self.rows.items():
            for row, where in zip(rows, self.places[run], strict=False):
                check_row(row, where)
            check(self.runs[run]["config"], {"cells": LIST}, f"{self.places[run][-1]}: config")
        return self

    def all_rows(self) -> Iterator[Row]:
        """Iterate over the rows of all finished runs."""
        for rows in self.rows.values():
            yield from rows


def session_facts(sessions: Sequence[Row]) -> dict[str, str]:
    """Return sweeps, machines, drivers, commits and dates of sessions, each as one text; absent facts are omitted."""
    facts = {
        "sweep": {str(line["sweep"]) for line in sessions},
        "machine": {str(line.get("gpu") or f"{line.get('cpu')}, {line.get('cores')} cores") for line in sessions},
        "driver": {str(line["driver"]) for line in sessions if line.get("driver")},
        "commit": {str(line.get("commit")) for line in sessions},
        "date": {str(line["date"])[:10] for line in sessions},
    }
    return {name: ", ".join(sorted(values)) for name, values in facts.items() if values}


def session_line(sweep: str, commit: str | None, device: str) -> Row:
    """Return the line of this process: code, machine and date. `device` is ``"cuda"`` or ``"cpu"``."""
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
    """Encode a line compactly. NumPy scalars become plain numbers; floats of a row have four significant digits."""
    digits = 4 if value["kind"] == "row" else 17

    def plain(item: Any) -> Any:
        if isinstance(item, np.generic):
            item = item.item()
        if isinstance(item, float):
            return float(f"{item:.{digits}g}") if np.isfinite(item) else None
        if isinstance(item, Mapping):
            return {key: plain(element) for key, element in item.items()}
        if isinstance(item, (list, tuple)):
            return [plain(element) for element in item]
        return str(item) if isinstance(item, Path) else item

    return (json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False) + "\n").encode()


class Store:
    """A result file that is open for appending, by one process at a time.

    Opening truncates the file after the last finished run, as a killed process may have written part of another.
    Raises ConfigError if another process has it open, or it is no file of results.
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
        try:  # only under the lock: what follows the last finished run may be another process's present one
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
        completes: Sequence[str] = (),
        cell_set: str = "",
    ) -> None:
        """Append a finished run, and return once it is on disk."""
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
            **({"completes": list(completes), "cell_set": cell_set} if completes else {}),
        }
        self._write([*({**head, **row} for row in rows), closing])  # the closing line last: it makes the rows count

    def fail(self, run: str, label: str, error: str) -> None:
        """Append the line of a run that ended in an error."""
        session = self.session["session"]
        head = {"schema": SCHEMA, "kind": "failed", "run": run, "session": session}
        self._write([{**head, "label": label, "error": error}])

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._file.write(b"".join(map(dump_line, lines)))
        self._file.flush()
        os.fsync(self._file.fileno())  # a run that was yielded must survive a power failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def finished_bytes(path: Path) -> int:
    """Return the length in bytes of the beginning of a file that has only whole runs."""
    finished = offset = 0
    with path.open("rb") as file:
        for line_number, raw in enumerate(file, 1):
            offset += len(raw)
            if raw.endswith(b"\n") and parse_line(raw, path, line_number)["kind"] != "row":
                finished = offset
    return finished


def parse_line(raw: bytes, path: Path, number: int) -> Row:
    """Parse a line of results; ConfigError if it is something else, or of another schema."""
    where = f"{path}, line {number}"
    try:
        line = parse_object(raw, where)
    except ConfigError as error:
        raise ConfigError(f"{error}; name a file that sp sweep wrote") from None
    if line.get("kind") not in KINDS:
        raise ConfigError(f"{where}: not a result of sp sweep; name a file that sp sweep wrote")
    if line.get("schema") != SCHEMA:
        raise ConfigError(
            f"{where}: schema {short(line.get('schema'))}, but this version of sp reads schema {SCHEMA}; "
            "use the version that wrote it, or another folder"
        )
    return line


def result_files(folder: Path) -> list[Path]:
    """Return the result files in a folder, ordered by name."""
    return sorted(path for path in folder.glob("*") if path.name.endswith(SUFFIXES) and path.is_file())


def read_results(paths: Iterable[Path]) -> SweepResults:
    """Read result files, gzipped or not; of a run that was done twice, the one in the later file counts.

    Raises ConfigError if a file cannot be read, is no file of results, or has another schema.
    """
    results = SweepResults()
    for path in paths:
        pending: list[tuple[str, Row]] = []
        for line_number, raw in enumerate(raw_lines(path), 1):
            if not raw.endswith(b"\n"):
                break  # incomplete, so its run did not finish
            line = parse_line(raw, path, line_number)
            kind, where = line["kind"], f"{path}, line {line_number}"
            if kind == "row":
                pending.append((where, line))
            elif kind == "session":
                check(line, SESSION, where)
                results.sessions[line["session"]] = line
                pending = []  # rows of a session that was interrupted
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
    """Read rows that `sp eval` wrote, gzipped or not; ConfigError for the first line that is not fit for a report."""
    for line_number, raw in enumerate(raw_lines(path), 1):
        where = f"{path}, line {line_number}"
        if raw.strip():
            yield check_row(parse_object(raw, where), where)


def raw_lines(path: Path) -> Iterator[bytes]:
    """Iterate over the unpacked lines of a file; ConfigError if it cannot be read, or unpacks to far too much."""
    try:
        packed, size = path.name.endswith(".gz"), 0
        most = MOST_UNPACKED * path.stat().st_size + LONGEST_LINE  # bytes; a tiny file may unpack to one long line
        with gzip.open(path) if packed else path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE + 1):
                size += len(raw)
                if len(raw) > LONGEST_LINE or (packed and size > most):
                    raise ConfigError(
                        f"{path}: a line has more than {LONGEST_LINE >> 20} MiB, or the file unpacks to more than "
                        f"{MOST_UNPACKED} times its size; name a file that sp sweep or sp eval wrote"
                    )
                yield raw
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
