"""`sp report`: results of sweeps, traces of runs and records of times, as one page of tables and pictures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sp.bench.record import newest
from sp.errors import ConfigError
from sp.kernels.machine import machine_slug
from sp.studies.figures import save_png
from sp.studies.plots.importance_map import SavedRun, importance_map
from sp.studies.plots.needle_map import needle_figure
from sp.studies.plots.pareto import pareto_figure
from sp.studies.plots.stage_bars import stage_figure
from sp.studies.style import tokens_label
from sp.studies.sweep.cells import Table
from sp.studies.sweep.store import SUFFIXES, Results, Row, read_results
from sp.studies.tables.report_tables import (
    cells_csv,
    decode_table,
    grid_table,
    kept_table,
    markdown,
    points,
    share,
    time_table,
)
from sp.trace import read_jsonl, write_atomic

SHOWN_KEEP = (0.05, 0.1)
"""Keep ratios of the detailed tables, if they were run; else the smallest one that was."""
MAPS_A_PAGE = 6


@dataclass
class Sources:
    """What the paths given hold.

    Parameters
    ----------
    results : list of Path
        Files of `sp sweep`.
    evals : list of Path
        Files of `sp eval --out`.
    records : list of Path
        Files of `sp bench`.
    runs : list of Path
        Folders of `sp run`.
    """

    results: list[Path] = field(default_factory=list)
    evals: list[Path] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)


def find_sources(paths: Iterable[Path]) -> Sources:
    """Sort files by what their first line is; folders are searched.

    Raises
    ------
    ConfigError
        A path is missing or holds nothing that a report can show.
    """
    found = Sources()
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES))
            found.runs += sorted(each.parent for each in path.rglob("trace.json"))
            if not inside and not found.runs:
                raise ConfigError(f"{path} holds no results; name a folder of sp sweep, sp bench or sp run")
        elif path.is_file():
            inside = [path]
        else:
            raise ConfigError(f"{path} is no file or folder; name results of sp sweep, sp bench or sp run")
        for each in inside:
            kind = first_object(each)
            if "kind" in kind:
                found.results.append(each)
            elif {"task", "cell", "status"} <= set(kind):
                found.evals.append(each)
            elif "bench" in kind:
                found.records.append(each)
            elif path.is_file():
                raise ConfigError(f"{path}, line 1: neither results of sp sweep or sp eval nor records of sp bench")
    return found


def first_object(path: Path) -> Row:
    """The first line of a JSON-lines file; empty if it is no JSON object."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            value = json.loads(file.readline())
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write_report(paths: Sequence[Path], out: Path, times: bool = True) -> Path:
    """Write ``report.md``, ``cells.csv`` and pictures into `out`; the path of the page.

    Without `times`, those of sweeps are left out: runs side by side on one device wait for each other.

    Raises
    ------
    ConfigError
        See `find_sources` and `read_results`; also when SciPy is missing.
    """
    sources = find_sources(paths)
    parts = []
    if sources.results or sources.evals:
        results = read_results(sources.results)
        asked = [row for path in sources.evals for row in read_jsonl(path)]
        groups = comparable(results)
        if asked:
            groups["Rows of sp eval"] = asked
        if not groups:
            names = ", ".join(map(str, sources.results + sources.evals))
            raise ConfigError(f"{names}: no finished run in it; run sp sweep first")
        parts += [provenance(results)] if results.runs else []
        parts += [] if times else ["Times are left out: the runs shared their devices."]
        for number, (title, rows) in enumerate(groups.items(), 1):
            several = len(groups) > 1
            parts += [f"# {title}"] if several else []
            parts += quality(Table.of(rows), out, f"{number}_" if several else "", times)
    for folder in sources.runs:
        run = SavedRun.load(folder)
        if run.has_maps:
            name = f"importance_{folder.name}.png" if len(sources.runs) > 1 else "importance_heads.png"
            save_png(importance_map(run), out / name)
            parts.append(f"## Importance along a prompt\n\n`{folder}`\n\n![Importance by layer and head]({name})")
    if timed := [record for path in sources.records for record in newest(path) if record["bench"] == "ttft"]:
        parts += times_section(timed, out)
    parts += decoding_section([record for path in sources.records for record in newest(path)], out)
    if not parts:
        raise ConfigError(f"{', '.join(map(str, paths))}: nothing here that a report shows")
    return write_atomic(out / "report.md", ("# Report\n\n" + "\n\n".join(parts) + "\n").encode())


def comparable(results: Results) -> dict[str, list[Row]]:
    """Rows by the part of a sweep file they belong to, or else by their cells: within a group, and only there, every
    strategy read the same examples."""
    groups: dict[str, list[Row]] = {}
    names: dict[str, str] = {}
    for run in results.runs.values():
        cells = json.dumps(run["config"]["cells"], sort_keys=True)
        name = run.get("part") or names.setdefault(cells, f"Part {len(names) + 1}")
        groups.setdefault(name, []).extend(results.rows[run["run"]])
    return groups


def provenance(results: Results) -> str:
    """Where the rows come from: machines, commits, models."""
    used = {run["session"] for run in results.runs.values()}
    sessions = [session for name, session in results.sessions.items() if name in used]
    machines = sorted({str(s.get("gpu") or f"{s.get('cpu')}, {s.get('cores')} cores") for s in sessions})
    facts = {
        "sweep": sorted({s["sweep"] for s in sessions}),
        "machine": machines,
        "driver": sorted({str(s["driver"]) for s in sessions if s.get("driver")}),
        "commit": sorted({str(s["commit"]) for s in sessions}),
        "date": sorted({s["date"][:10] for s in sessions}),
    }
    models = {
        (role, each["file"], each["sha256"][:12])
        for run in results.runs.values()
        for role, each in run["models"].items()
    }
    facts |= {"model": [f"{role} {file} (sha256 {digest})" for role, file, digest in sorted(models, reverse=True)]}
    rows = [[name, ", ".join(values)] for name, values in facts.items() if values]
    rows.append(["runs", f"{len(results.runs):,} finished, {len(results.failed):,} failed"])
    skipped = [row for row in results.all_rows() if row["status"] != "ok"]
    if skipped:
        reasons = {status: sum(row["status"] == status for row in skipped) for status in {r["status"] for r in skipped}}
        rows.append(["rows not run", ", ".join(f"{count:,} {status}" for status, count in sorted(reasons.items()))])
    return markdown(["", ""], rows).replace("---:", "---")


def quality(table: Table, out: Path, prefix: str, times: bool) -> list[str]:
    """Sections on answers, selections and, if asked for, time, with their pictures; file names begin with `prefix`."""
    ratios = table.values("keep_ratio")
    shown = [ratio for ratio in SHOWN_KEEP if ratio in ratios] or ratios[:1]
    parts = [
        "Right answers in per cent, with Wilson 95 % intervals; differences to the full prefill of the same examples "
        "in points, with paired bootstrap 95 % intervals. Scorers that read no model are controls and stand last. "
        f"Every group of one task, length and keep ratio is in [{prefix}cells.csv]({prefix}cells.csv).",
        "## Right answers by keep ratio\n\nAll tasks and lengths together.\n\n"
        + grid_table(table, "keep_ratio", share, name=lambda r: f"keep {r:g}"),
        "### Against the full prefill\n\n" + grid_table(table, "keep_ratio", points, name=lambda r: f"keep {r:g}"),
    ]
    save_png(pareto_figure(table, "kept_tokens"), out / f"{prefix}pareto_kept.png")
    parts.append(f"![Right answers over kept tokens]({prefix}pareto_kept.png)")
    if times:
        save_png(pareto_figure(table, "ttft_s"), out / f"{prefix}pareto_ttft.png")
        parts.append(f"![Right answers over time]({prefix}pareto_ttft.png)")
    for keep in shown:
        parts.append(f"## By task, keep ratio {keep:g}\n\n" + grid_table(table, "task", share, keep=keep))
        by_length = grid_table(table, "tokens_asked", share, keep=keep, name=tokens_label)
        parts.append(f"## By prompt tokens, keep ratio {keep:g}\n\n" + by_length)
    parts.append("## What was kept\n\n" + kept_table(table, shown))
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
            slug = "".join(letter if letter.isalnum() else "_" for letter in task)
            file = f"{prefix}map_{slug}_{keep:g}_{page}.png"
            save_png(needle_figure(table, task, keep, names[start : start + MAPS_A_PAGE]), out / file)
            parts.append(f"![{task}, depth over length, keep ratio {keep:g}]({file})")
    return [f"## Needles by depth and length, keep ratio {keep:g}", *parts] if parts else []


def times_section(records: Sequence[Row], out: Path) -> list[str]:
    """Tables and pictures of measured times to the first token, machine by machine and target by target."""
    from sp.studies.plots.ttft_plots import draw_stages
    from sp.studies.tables.headline import NOTHING, headline
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    long = headline(records)
    parts = [f"## Time to the first token of long prompts\n\n{long}"] if long != NOTHING else []
    groups: dict[tuple[str, str], list[Row]] = {}
    for record in records:
        groups.setdefault((machine_slug(record), record["config"]["target"]), []).append(record)
    for number, ((machine, _), group) in enumerate(sorted(groups.items()), 1):
        name = f"ttft_stages_{number}.png" if len(groups) > 1 else "ttft_stages.png"
        rows = [row_of(record) for record in group]
        heads, cells, _ = cells_of(rows)
        draw_stages(group, out / name)
        title = f"## Time to the first token, measured alone: {machine}\n\n{title_of(rows)}"
        parts.append(f"{title}\n\n{markdown(heads, cells)}\n\n![Stages of a request]({name})")
    return parts


def decoding_section(records: Sequence[Row], out: Path) -> list[str]:
    """Tables and pictures of decoding with a draft; nothing where none is recorded."""
    from sp.studies.plots.decode_plots import draw_decoding
    from sp.studies.tables.decode_table import decode_tables

    parts = [f"{title}\n\n{markdown(heads, cells)}" for title, heads, cells, _ in decode_tables(records)]
    parts += [f"![Decoding by budget]({path.name})" for path in draw_decoding(records, out)] if parts else []
    return ["## Decoding with a draft", *parts] if parts else []


def write_page(paths: Sequence[Path], page: Path) -> Path:
    """Put what the records below `paths` say between the marks of `page`, see `sp.studies.tables.page`.

    Raises
    ------
    ConfigError
        See `find_sources` and `fill`; also when the page cannot be read.
    """
    from sp.studies.tables.page import fill

    records = [record for path in find_sources(paths).records for record in newest(path)]
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {page}: {error.strerror}; name a page in --readme") from None
    return write_atomic(page, fill(text, records).encode())
