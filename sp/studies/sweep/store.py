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

Rows without their closing `run` line belong to a run that was cut off, and are ignored. DuckDB reads the files as
they are:

    duckdb -c "SELECT task, scorer, keep_ratio, count(*) AS n, avg(correct) AS accuracy
               FROM read_json_auto('sp-sweep/quickstart/*.jsonl', union_by_name = true)
               WHERE kind = 'row' GROUP BY ALL ORDER BY ALL"
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from uuid import uuid4

import numpy as np

from sp import __version__
from sp.errors import ConfigError
from sp.kernels.machine import machine_facts

SCHEMA = 1
KINDS = ("session", "row", "run", "failed")
SUFFIXES = (".jsonl", ".jsonl.gz")

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What a set of result files holds.

    Parameters
    ----------
    sessions : dict
        Session lines by id.
    runs : dict
        Closing lines of finished runs by hash; of a run that was done twice, the later in reading order.
    rows : dict
        Rows of those runs by hash.
    failed : dict
        Failure lines of runs that have not finished since.
    """

    sessions: dict[str, Row] = field(default_factory=dict)
    runs: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)

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

    Parameters
    ----------
    path : Path
        Made with its folder if missing.
    session : mapping
        What `session_line` returned.

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
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: not JSON ({error}); name a file that sp sweep wrote") from None
    if not isinstance(line, dict) or line.get("kind") not in KINDS:
        raise ConfigError(f"{path}, line {number}: no result of sp sweep; name a file that sp sweep wrote")
    if line.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path}, line {number}: schema {line.get('schema')}, but this version of sp reads schema {SCHEMA}; "
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
        pending: list[Row] = []
        for number, raw in enumerate(_lines(path), 1):
            if not raw.endswith(b"\n"):
                break  # torn: its run did not finish
            line = parse_line(raw, path, number)
            kind, run = line["kind"], line.get("run", "")
            if kind == "row":
                pending.append(line)
            elif kind == "session":
                results.sessions[line["session"]] = line
                pending = []
            elif kind == "failed":
                if run not in results.runs:
                    results.failed[run] = line
            else:
                results.runs[run] = line
                results.rows[run] = [row for row in pending if row["run"] == run]
                results.failed.pop(run, None)
                pending = []
    return results


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            yield from file
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
