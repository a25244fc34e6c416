"""Groups of comparable rows of result files, and where the rows come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sp.scoring.base import SPARSE_TOKENS, attending
from sp.scoring.sparse import AUTO
from sp.studies.sweep.store import Row, SweepResults, session_facts
from sp.studies.sweep.sweep import config_hash


@dataclass
class Comparable:
    """Rows in which every strategy read the same examples, and the records of their drafters by SHA-256."""

    rows: list[Row] = field(default_factory=list)
    drafters: dict[str, dict[str, Any]] = field(default_factory=dict)


def comparable(results: SweepResults) -> dict[str, Comparable]:
    """Group rows by the part of the sweep file that they belong to, or else by their cells.

    A run that only has the cells that earlier runs lacked belongs to the group of those runs.
    """
    groups: dict[str, Comparable] = {}
    names: dict[str, str] = {}
    sets = _cell_sets(results)
    for run in results.runs.values():
        cells = sets[run["run"]]
        name = run.get("part") or names.setdefault(cells, f"Part {len(names) + 1}")
        group = groups.setdefault(name, Comparable())
        group.rows += results.rows[run["run"]]
        group.drafters |= {model["sha256"]: model for role, model in run["models"].items() if role == "drafter"}
    return groups


def _cell_sets(results: SweepResults) -> dict[str, str]:
    """Return the hash of a set of cells for every run; runs that complete each other share one."""
    sets = {
        name: run.get("cell_set") or config_hash({"cells": run["config"]["cells"]})
        for name, run in results.runs.items()
    }
    for name, run in results.runs.items():
        for earlier in run.get("completes", ()):
            if isinstance(earlier, str) and earlier in sets and sets[earlier] != sets[name]:
                # The two sets become one, in every run that has either: a run may complete several that differ.
                old, new = sets[earlier], sets[name]
                sets = {key: new if value == old else value for key, value in sets.items()}
    return sets


def attention_rules(results: SweepResults) -> str:
    """Describe which key blocks were read while scoring, as options of the stored scorers; empty if none reads.

    A stored value may be anything, and is written as it is.
    """
    scorers_by_rule: dict[str, set[str]] = {}
    for run in results.runs.values():
        for cell in run["config"]["cells"]:
            scorer = cell.get("scorer") if isinstance(cell, dict) else None
            if isinstance(scorer, dict) and "attention" in scorer:
                scorers_by_rule.setdefault(_rule(scorer), set()).add(str(scorer.get("name")))
    if len(scorers_by_rule) == 1:
        return next(iter(scorers_by_rule))
    return ", ".join(f"{rule} ({', '.join(sorted(names))})" for rule, names in scorers_by_rule.items())


def _rule(scorer: dict[str, Any]) -> str:
    if scorer["attention"] == "auto":
        return f"auto ({AUTO.replace(':', ' ')} from {SPARSE_TOKENS:,} tokens on)"
    if scorer["attention"] == "dense":  # which is stored with an alpha, too
        return "dense"
    return attending(scorer) or "dense"


def provenance(results: SweepResults) -> list[tuple[str, str]]:
    """Describe where the rows come from as names and values: machines, commits, models, sparse attention, runs."""
    # Only sessions that finished a run: others have no rows.
    used = {run["session"] for run in results.runs.values()}
    facts = session_facts([session for name, session in results.sessions.items() if name in used])
    models = {
        (role, " ".join([model["file"], *([model["rope"]] if "rope" in model else [])]), model["sha256"][:12])
        for run in results.runs.values()
        for role, model in run["models"].items()
    }
    descriptions = [f"{role} {file} (sha256 {digest})" for role, file, digest in sorted(models, reverse=True)]
    rows = [*facts.items(), *([("model", ", ".join(descriptions))] if descriptions else [])]
    rows += [("attention while scoring", rules)] if (rules := attention_rules(results)) else []
    rows.append(("runs", f"{len(results.runs):,} finished, {len(results.failed):,} failed"))
    skipped = [row for row in results.all_rows() if row["status"] != "ok"]
    if skipped:
        reasons = {status: sum(row["status"] == status for row in skipped) for status in {r["status"] for r in skipped}}
        rows.append(("rows not run", ", ".join(f"{count:,} {status}" for status, count in sorted(reasons.items()))))
    return rows
