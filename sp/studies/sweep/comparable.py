"""Rows of result files that compare, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sp.studies.sweep.store import Results, Row, session_facts
from sp.studies.sweep.sweep import config_hash


@dataclass
class Comparable:
    """Rows of which every strategy read the same examples, and what is known of the drafters that did, by SHA-256."""

    rows: list[Row] = field(default_factory=list)
    drafters: dict[str, dict[str, Any]] = field(default_factory=dict)


def comparable(results: Results) -> dict[str, Comparable]:
    """Group rows by the part of a sweep file they belong to, or else by their cells.

    Runs that completed earlier ones, since a cell was added to the file, belong to the group of these.
    """
    groups: dict[str, Comparable] = {}
    names: dict[str, str] = {}
    sets = _cell_sets(results)
    for run in results.runs.values():
        cells = sets[run["run"]]
        name = run.get("part") or names.setdefault(cells, f"Part {len(names) + 1}")
        group = groups.setdefault(name, Comparable())
        group.rows += results.rows[run["run"]]
        group.drafters |= {each["sha256"]: each for role, each in run["models"].items() if role == "drafter"}
    return groups


def _cell_sets(results: Results) -> dict[str, str]:
    """Return a set of cells for every run, one for all runs that complete each other."""
    sets = {
        name: run.get("cell_set") or config_hash({"cells": run["config"]["cells"]})
        for name, run in results.runs.items()
    }
    for name, run in results.runs.items():
        for earlier in run.get("completes", ()):
            if isinstance(earlier, str) and earlier in sets and sets[earlier] != sets[name]:
                old, new = sets[earlier], sets[name]
                sets = {key: new if value == old else value for key, value in sets.items()}
    return sets


def provenance(results: Results) -> list[tuple[str, str]]:
    """Where the rows come from: machines, commits, models, as names and values."""
    used = {run["session"] for run in results.runs.values()}
    facts = session_facts([session for name, session in results.sessions.items() if name in used])
    models = {
        (role, " ".join([each["file"], *([each["rope"]] if "rope" in each else [])]), each["sha256"][:12])
        for run in results.runs.values()
        for role, each in run["models"].items()
    }
    listed = [f"{role} {file} (sha256 {digest})" for role, file, digest in sorted(models, reverse=True)]
    rows = [*facts.items(), *([("model", ", ".join(listed))] if listed else [])]
    rows.append(("runs", f"{len(results.runs):,} finished, {len(results.failed):,} failed"))
    skipped = [row for row in results.all_rows() if row["status"] != "ok"]
    if skipped:
        reasons = {status: sum(row["status"] == status for row in skipped) for status in {r["status"] for r in skipped}}
        rows.append(("rows not run", ", ".join(f"{count:,} {status}" for status, count in sorted(reasons.items()))))
    return rows
