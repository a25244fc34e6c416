"""Sections of a report on what selections keep: answers, evidence and time by strategy, and where rows are from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sp.evals.trained_for import note_of_records
from sp.studies.figures import save_png
from sp.studies.plots.forest_plot import forest_figure
from sp.studies.plots.needle_map import needle_figure
from sp.studies.plots.pareto import pareto_figure, stage_figure
from sp.studies.style import tokens_label
from sp.studies.sweep.cells import Table
from sp.studies.sweep.store import Results, Row
from sp.studies.tables.report_tables import (
    cells_csv,
    decode_table,
    grid_table,
    kept_table,
    oracle_points,
    points,
    share,
    time_table,
)
from sp.trace import write_atomic

SHOWN_KEEP = (0.05, 0.1)
"""Keep ratios of the detailed tables, if they were run; else the smallest one that was."""
MAPS_A_PAGE = 6


@dataclass
class Comparable:
    """Rows of which every strategy read the same examples, and what is known of the drafters that did, by SHA-256."""

    rows: list[Row] = field(default_factory=list)
    drafters: dict[str, dict[str, Any]] = field(default_factory=dict)


def comparable(results: Results) -> dict[str, Comparable]:
    """Rows by the part of a sweep file they belong to, or else by their cells."""
    groups: dict[str, Comparable] = {}
    names: dict[str, str] = {}
    for run in results.runs.values():
        cells = json.dumps(run["config"]["cells"], sort_keys=True)
        name = run.get("part") or names.setdefault(cells, f"Part {len(names) + 1}")
        group = groups.setdefault(name, Comparable())
        group.rows += results.rows[run["run"]]
        group.drafters |= {each["sha256"]: each for role, each in run["models"].items() if role == "drafter"}
    return groups


def provenance(results: Results) -> list[tuple[str, str]]:
    """Where the rows come from: machines, commits, models, as names and values."""
    used = {run["session"] for run in results.runs.values()}
    sessions = [session for name, session in results.sessions.items() if name in used]
    machines = sorted({str(s.get("gpu") or f"{s.get('cpu')}, {s.get('cores')} cores") for s in sessions})
    facts = {
        "sweep": sorted({s["sweep"] for s in sessions}),
        "machine": machines,
        "driver": sorted({str(s["driver"]) for s in sessions if s.get("driver")}),
        "commit": sorted({str(s.get("commit")) for s in sessions}),
        "date": sorted({s["date"][:10] for s in sessions}),
    }
    models = {
        (role, " ".join([each["file"], *([each["rope"]] if "rope" in each else [])]), each["sha256"][:12])
        for run in results.runs.values()
        for role, each in run["models"].items()
    }
    facts |= {"model": [f"{role} {file} (sha256 {digest})" for role, file, digest in sorted(models, reverse=True)]}
    rows = [(name, ", ".join(values)) for name, values in facts.items() if values]
    rows.append(("runs", f"{len(results.runs):,} finished, {len(results.failed):,} failed"))
    skipped = [row for row in results.all_rows() if row["status"] != "ok"]
    if skipped:
        reasons = {status: sum(row["status"] == status for row in skipped) for status in {r["status"] for r in skipped}}
        rows.append(("rows not run", ", ".join(f"{count:,} {status}" for status, count in sorted(reasons.items()))))
    return rows


def quality(group: Comparable, out: Path, prefix: str, times: bool) -> list[str]:
    """Sections on answers, selections and, if asked for, time, with their pictures; file names begin with `prefix`.

    Under every table that ranks scorers stands what their drafter was trained for.
    """
    table, note = Table.of(group.rows), note_of_records(group.drafters.values())
    told = f"\n\n{note}" if note else ""
    ratios = table.values("keep_ratio")
    shown = [ratio for ratio in SHOWN_KEEP if ratio in ratios] or ratios[:1]
    parts = [
        "Right answers in per cent, with Wilson 95 % intervals; differences to the full prefill of the same examples "
        "in points, with paired bootstrap 95 % intervals. Scorers that read no model are controls and stand last, but "
        "for oracles that read the target: those and `oracle` know its answer or the evidence: upper references. "
        f"Every group of one task, length and keep ratio is in [{prefix}cells.csv]({prefix}cells.csv).",
        "## Right answers by keep ratio\n\nAll tasks and lengths together.\n\n"
        + grid_table(table, "keep_ratio", share, name=lambda r: f"keep {r:g}")
        + told,
        "### Against the full prefill\n\n"
        + grid_table(table, "keep_ratio", points, name=lambda r: f"keep {r:g}")
        + told,
    ]
    if table.oracles:
        parts.append(
            "### Distance to the oracle\n\nFrom the oracle that was right most often at the same task, length and keep "
            "ratio, on the same examples.\n\n"
            + grid_table(table, "keep_ratio", oracle_points, name=lambda r: f"keep {r:g}")
            + told
        )
    if len(ratios) > 1:
        save_png(pareto_figure(table, "kept_tokens"), out / f"{prefix}pareto_kept.png")
        parts.append(f"![Right answers over kept tokens]({prefix}pareto_kept.png)")
    else:
        save_png(forest_figure(table, ratios[0]), out / f"{prefix}forest.png")
        parts.append(f"![Right answers by strategy]({prefix}forest.png)")
    if times:
        save_png(pareto_figure(table, "ttft_s"), out / f"{prefix}pareto_ttft.png")
        parts.append(f"![Right answers over time]({prefix}pareto_ttft.png)")
    for keep in shown:
        parts.append(f"## By task, keep ratio {keep:g}\n\n" + grid_table(table, "task", share, keep=keep) + told)
        if table.oracles:
            far = grid_table(table, "task", oracle_points, keep=keep)
            parts.append(f"### Distance to the oracle, keep ratio {keep:g}\n\n{far}{told}")
        by_length = grid_table(table, "tokens_asked", share, keep=keep, name=tokens_label)
        parts.append(f"## By prompt tokens, keep ratio {keep:g}\n\n" + by_length + told)
    parts.append("## What was kept\n\n" + kept_table(table, shown) + told)
    if any(row.get("acceptance_length") is not None for row in table.rows):
        parts.append("## Decoding\n\nMean tokens a pass, median seconds.\n\n" + decode_table(table, shown))
    for keep in shown:
        parts += needle_maps(table, keep, out, prefix)
    if times:
        longest = table.values("tokens_asked")[-1]
        save_png(stage_figure(table, longest, shown[0]), out / f"{prefix}stages.png")
        parts.append(
            f"## Time to the first token, keep ratio {shown[0]:g}\n\n"
            + "Median seconds, and the full prefill's time over it.\n\n"
            + time_table(table, shown[0])
            + f"\n\n![Stages at {tokens_label(longest)} tokens]({prefix}stages.png)"
        )
    write_atomic(out / f"{prefix}cells.csv", cells_csv(table, times).encode())
    return parts


def needle_maps(table: Table, keep: float, out: Path, prefix: str) -> list[str]:
    """Maps of every needle task of several lengths at one keep ratio, six strategies a picture."""
    parts = []
    rows = [row for row in table.rows if row.get("depth") is not None and row["task"].startswith("needle")]
    lengths = {task: {row["tokens_asked"] for row in rows if row["task"] == task} for task in {r["task"] for r in rows}}
    tasks = sorted(task for task, found in lengths.items() if len(found) > 1)
    for task in tasks:
        there = {row["strategy"] for row in table.rows if row["task"] == task}
        names = [name for name in table.strategies() if name in there]
        for page, start in enumerate(range(0, len(names), MAPS_A_PAGE), 1):
            slug = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in task)[:80]
            file = f"{prefix}map_{slug}_{keep:g}_{page}.png"
            save_png(needle_figure(table, task, keep, names[start : start + MAPS_A_PAGE]), out / file)
            parts.append(f"![{task}, depth over length, keep ratio {keep:g}]({file})")
    return [f"## Needles by depth and length, keep ratio {keep:g}", *parts] if parts else []
