"""Which committed records are old, and how many may be: ``results/OLD.json`` states it by file, with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sp.bench.record import is_current, key_of, newest
from sp.errors import ConfigError
from sp.trace import write_atomic

BUDGET = "OLD.json"
GPU_TESTS = "gpu_tests"


def measured_files(results: Path) -> list[Path]:
    """Files of records that name their kernels, below a folder; logs and rows of studies do not."""
    return [path for path in sorted(results.rglob("*.jsonl")) if "kernel_hash" in first_line(path)]


def first_line(path: Path) -> dict[str, Any]:
    """The first object of a file; empty if it has none."""
    with path.open(encoding="utf-8") as file:
        found = json.loads(file.readline() or "{}")
    return found if isinstance(found, dict) else {}


def superseded(path: Path) -> int:
    """How many records of a file have a newer one of the same key behind them."""
    keys = [key_of(json.loads(line)) for line in path.read_bytes().splitlines()]
    return len(keys) - len(set(keys))


def prune(results: Path) -> dict[Path, int]:
    """Leave of each key the newest record, since git keeps the others; how many went, by file."""
    taken = {path: count for path in measured_files(results) if (count := superseded(path))}
    for path in taken:
        last = {key_of(json.loads(line)): line for line in path.read_bytes().splitlines()}  # in the order of `newest`
        write_atomic(path, b"\n".join(last.values()) + b"\n")
    return taken


def old_keys(path: Path, tests: Path) -> list[str]:
    """Configurations of a file whose newest record is of other kernels than today's.

    Of GPU tests, that is every file of `tests` whose newest record is old or missing; one that is gone counts no more.
    """
    if path.stem != GPU_TESTS:
        return [json.dumps(record["config"]) for record in newest(path) if not is_current(record)]
    last = {file: record for record in (newest(path) if path.exists() else ()) for file in record["config"]["tests"]}
    files = sorted(file.relative_to(tests).as_posix() for file in tests.rglob("test_*.py"))
    return [file for file in files if file not in last or not is_current(last[file])]


def failed_tests(path: Path) -> list[str]:
    """Files of GPU tests whose newest record has failures; of other benchmarks' records none."""
    if path.stem != GPU_TESTS:
        return []
    return [file for record in newest(path) if record["metrics"]["failed"] for file in record["config"]["tests"]]


def read_budget(results: Path) -> dict[str, dict[str, Any]]:
    """By file below `results`: ``old``, how many records may and must be old, ``why``, and ``failed``.

    The latter, of GPU tests alone, says for each file whose newest record has failures what they were.
    """
    found: dict[str, dict[str, Any]] = json.loads((results / BUDGET).read_text(encoding="utf-8"))
    return found


def check_budget(results: Path, path: Path, tests: Path) -> None:
    """A file holds exactly as many old records as `read_budget` states, so that what is stated stays true.

    Raises
    ------
    ConfigError
        It holds more, or fewer.
    """
    stated = read_budget(results).get(path.relative_to(results).as_posix(), {"old": 0})["old"]
    found = old_keys(path, tests)
    if len(found) != stated:
        raise ConfigError(
            f"{path.name}: {len(found)} records are of kernels that have changed since, {BUDGET} states {stated}; "
            f"measure anew (experiments/record_all.py), or state the count and why: {', '.join(found)[:300]}"
        )


def restate(results: Path, tests: Path, why: str) -> Mapping[str, dict[str, Any]]:
    """Write the counts as they are; `why` stands where there was no reason yet."""
    before = read_budget(results) if (results / BUDGET).exists() else {}
    stated = {}
    for path in measured_files(results):
        name = path.relative_to(results).as_posix()
        known, failed = before.get(name, {}), failed_tests(path)
        if count := len(old_keys(path, tests)):
            stated[name] = {"old": count, "why": known.get("why", why)}
            if failed:
                stated[name]["failed"] = {file: known.get("failed", {}).get(file, why) for file in failed}
    write_atomic(results / BUDGET, (json.dumps(stated, indent=1) + "\n").encode())
    return stated
