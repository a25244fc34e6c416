"""Rows of natural questions by set: of a sweep (``sp sweep experiments/real.yaml``), or of ``sp eval natural --out``.

The set of a sweep's rows is the file of questions that its task names, or ``natural``; that of other rows is their own
file's name, without its endings.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.natural.rows import key_of
from sp.studies.sweep.store import read_results

Row = dict[str, Any]


def read_sets(paths: Iterable[Path], name: str | None = None) -> dict[str, list[Row]]:
    """Rows by set, or all in the one that is named; a row that two files have counts once."""
    found: dict[str, dict[tuple[Any, ...], Row]] = {}
    for path in paths:
        try:
            for own, row in read_rows(path):
                key = (*key_of(row), row["models"]["drafter"]["sha256"])
                found.setdefault(name or own, {})[key] = row
        except (OSError, ValueError, KeyError, ConfigError) as error:
            raise SystemExit(f"{path}: {error}") from None
    return {own: list(rows.values()) for own, rows in found.items()}


def read_rows(path: Path) -> list[tuple[str, Row]]:
    """Rows of a file, each with its set and its models."""
    raw = path.read_bytes()
    lines = [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]
    if lines and "kind" in lines[0] and "schema" in lines[0]:
        return of_sweep(path)
    return [(path.name.split(".")[0], row) for row in lines]


def of_sweep(path: Path) -> list[tuple[str, Row]]:
    """Rows of the finished runs of a sweep."""
    results = read_results([path])
    rows = []
    for run, closing in results.runs.items():
        name = Path(closing["config"]["task"]["questions"] or "natural").stem
        rows += [(name, row | {"models": closing["models"]}) for row in results.rows[run]]
    return rows
